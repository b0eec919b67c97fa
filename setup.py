"""Names the packages: the rooms are top-level folders, imported as apprentice.<room>; see pyproject.toml."""

from setuptools import find_packages, setup

ROOMS = ("envs", "tasks", "flows", "deployments")

setup(
    packages=[f"apprentice.{each}" for room in ROOMS for each in [room, *(f"{room}.{p}" for p in find_packages(room))]]
)
