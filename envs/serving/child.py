"""Runs a module of this project in a process of its own: `python -P child.py MODULE ARGUMENTS`.

`python -m` would look for modules in the current folder first: a user's `random.py` or `datasets.py` there would run in
place of the library's. A child finds what its parent finds, and its parent's further folders come last.
"""

import os
import runpy
import sys

PARENTS_PATH = "APPRENTICE_SYS_PATH"
"""The folders of the parent's `sys.path`, separated as in PATH."""
SAFE_PATH = "PYTHONSAFEPATH"
OURS = "apprentice"
"""The value of PYTHONSAFEPATH that the command sets for the processes that libraries start. Processes that an
environment starts do not get it: they are the user's own, and may import what is beside them."""


def child_command(module: str, *arguments: str) -> list[str]:
    """What runs `module` in another process, with `child_environment`."""
    return [sys.executable, "-P", os.path.abspath(__file__), module, *arguments]


def child_environment(**variables: str) -> dict[str, str]:
    return os.environ | {PARENTS_PATH: os.pathsep.join(map(os.path.abspath, sys.path))} | variables


def main() -> None:
    given = os.environ.get(PARENTS_PATH, "").split(os.pathsep)
    sys.path += [folder for folder in given if folder and folder not in sys.path and os.path.exists(folder)]
    if os.environ.get(SAFE_PATH) == OURS:
        del os.environ[SAFE_PATH]
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
