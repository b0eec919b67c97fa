"""Names the packages: `apprentice`, and its rooms, which are folders beside it."""

from setuptools import find_packages, setup

ROOMS = ("envs", "tasks", "flows", "deployments")

setup(
    packages=["apprentice"]
    + [f"apprentice.{each}" for room in ROOMS for each in [room, *(f"{room}.{p}" for p in find_packages(room))]],
    package_dir={f"apprentice.{room}": room for room in ROOMS},
)
