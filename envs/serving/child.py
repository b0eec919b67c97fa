"""Runs a module of this project in a process of its own: `python -P child.py [--path FOLDERS] MODULE ARGUMENTS`.

`python -m` would look for modules in the current folder first: a user's `random.py` or `datasets.py` there would run in
place of the library's. A child finds what its parent finds, and folders of the parent's own come last.
"""

import os
import runpy
import sys
import sysconfig
from pathlib import Path

PATH = "--path"
SAFE_PATH = "PYTHONSAFEPATH"
OURS = "apprentice"
"""The value of PYTHONSAFEPATH that the command sets for the processes that libraries start. Processes that an
environment starts do not get it: they are the user's own, and may import what is beside them."""


def child_command(module: str, *arguments: str) -> list[str]:
    """What runs `module` in another process."""
    own = os.pathsep.join(_own_folders())
    return [sys.executable, "-P", os.path.abspath(__file__), *([PATH, own] if own else []), module, *arguments]


def _own_folders() -> list[str]:
    """The folders of this process's path that do not belong to its Python: of a script, a notebook, a test."""
    of_python = {sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
    folders = dict.fromkeys(map(os.path.abspath, sys.path))
    return [each for each in folders if os.path.exists(each) and not any(map(Path(each).is_relative_to, of_python))]


def main() -> None:
    words = sys.argv[1:]
    if words[0] == PATH:
        sys.path += [folder for folder in words[1].split(os.pathsep) if folder not in sys.path]
        words = words[2:]
    if os.environ.get(SAFE_PATH) == OURS:
        del os.environ[SAFE_PATH]
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
