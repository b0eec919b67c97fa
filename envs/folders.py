"""Environments in folders that no installed package has: `environment: {path: ./my_env}` in a recipe.

In: the path of a package with env.py, policy.py and server/, or of the project around it that `apprentice env init`
writes. Out: the package, imported under the folder's name. The environment variable APPRENTICE_ENVIRONMENTS lists the
folders, separated as in PATH, so that the servers, which are child processes, find the environment as well.
"""

import importlib.util
import os
import sys
from pathlib import Path

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
    """Return the folder of the package at a path. Raises ValueError if there is none."""
    whole = path.expanduser().resolve()
    if not whole.exists():
        raise ValueError(
            f"{path} is not on this machine; where a run is played on another one, install the environment there (pip "
            "install FOLDER) and write environment.name in place of environment.path"
        )
    for folder in (whole, whole / whole.name):
        if (folder / "env.py").is_file() and (folder / "__init__.py").is_file():
            if not folder.name.isidentifier():
                raise ValueError(f"{folder.name!r} cannot be a package's name: rename the folder, such as my_env")
            return folder
    raise ValueError(f"{path} is no environment: neither it nor {whole.name}/ in it has __init__.py and env.py")


def import_package(folder: Path) -> str:
    """Import the package in a folder under the folder's name, and return it. Raises ValueError if the name is taken.

    Nothing is added to sys.path, where what stands beside the folder could hide an installed package.
    """
    name, init = folder.name, folder / "__init__.py"
    loaded = sys.modules.get(name)
    found = loaded.__spec__ if loaded else importlib.util.find_spec(name)
    if found is not None and found.origin is not None and Path(found.origin).resolve() != init:
        raise ValueError(f"the name of the folder {folder} is that of another package, {found.origin}: rename it")
    if loaded is None or found is None or found.origin is None:
        spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(folder)])
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return name
