"""Names the packages: `apprentice`, its rooms, which are folders beside it, and the folders of modules in those."""

from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
ROOMS = ("envs", "tasks", "flows", "deployments")
FOLDERS = {file.parent.relative_to(HERE) for room in ROOMS for file in HERE.joinpath(room).rglob("*.py")}

setup(
    packages=["apprentice", *sorted(".".join(("apprentice", *folder.parts)) for folder in FOLDERS)],
    package_dir={f"apprentice.{room}": room for room in ROOMS},
)
