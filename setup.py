"""Names the packages: `apprentice`, and its rooms, which are folders beside this file; see pyproject.toml."""

from setuptools import find_packages, setup

ROOMS = ("envs", "tasks", "flows", "deployments")

setup(
    script_name="setup.py",  # which is no module of the package, though it lies in its folder
    packages=[
        "apprentice",
        *(f"apprentice.{each}" for room in ROOMS for each in [room, *(f"{room}.{p}" for p in find_packages(room))]),
    ],
)
