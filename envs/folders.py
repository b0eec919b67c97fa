"""Environments in files and folders that no installed package has: `environment: {path: ./my_env}` in a recipe.

In: the path of a file with a game, of the folder that `apprentice env init` writes around it, or of a package with
env.py, policy.py and server/. Out: the module or package, imported under its name. The environment variable
APPRENTICE_ENVIRONMENTS lists them, separated as in PATH, so that the servers, which are child processes, find them too.
"""

import importlib.util
import os
import sys
from pathlib import Path

from apprentice.envs.paths import path_from

FOLDERS = "APPRENTICE_ENVIRONMENTS"
"""The environment variable."""


def listed() -> list[Path]:
    """Return the folders of this process and of those that it starts."""
    return [Path(folder) for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]


def add(folder: Path) -> None:
    """List a folder, for this process and those that it starts."""
    if folder not in listed():
        os.environ[FOLDERS] = os.pathsep.join(map(str, [*listed(), folder]))


def package_at(path: Path) -> Path:
    """Return the folder of the package at a path, or the file that is all of an environment. Raises ValueError if there
    is neither."""
    whole = path_from(path).resolve()
    if not whole.exists():
        raise ValueError(
            f"{path} is not on this machine; where a run is played on another one, copy it to the same path there, or "
            "install the environment there as a package and write environment.name in place of environment.path"
        )
    for file in (whole, whole / f"{whole.name}.py"):
        if file.is_file() and file.suffix == ".py":
            if not file.stem.isidentifier():
                raise ValueError(f"{file.stem!r} cannot be a module's name: rename the file, such as my_env.py")
            return file
    for folder in (whole, whole / whole.name):
        if (folder / "env.py").is_file() and (folder / "__init__.py").is_file():
            if not folder.name.isidentifier():
                raise ValueError(f"{folder.name!r} cannot be a package's name: rename the folder, such as my_env")
            return folder
    raise ValueError(
        f"{path} is no environment: neither it nor {whole.name}/ in it has __init__.py and env.py, and "
        f"there is no {whole.name}.py in it"
    )


def import_package(folder: Path) -> str:
    """Import the package in a folder, or a file, under its name, and return that. Raises ValueError if it is taken.

    Nothing is added to sys.path, where a neighbour of the folder could hide an installed package.
    """
    name, init = folder.stem, folder if folder.is_file() else folder / "__init__.py"
    loaded = sys.modules.get(name)
    found = loaded.__spec__ if loaded else importlib.util.find_spec(name)
    if found is not None and found.origin is not None and Path(found.origin).resolve() != init:
        raise ValueError(f"the name of {folder} is that of another package, {found.origin}: rename it")
    if loaded is None or found is None or found.origin is None:
        spec = importlib.util.spec_from_file_location(
            name, init, submodule_search_locations=None if folder.is_file() else [str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return name
