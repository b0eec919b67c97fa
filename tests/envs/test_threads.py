"""Threads of a training do not spin in vain beside another process, unless the user says how they wait."""

import os
import subprocess
import sys

import pytest

from apprentice.envs.defaults import SPINS, WAITING


def spins(**given: str) -> str:
    """What a process and its child processes have once anything of ours is imported."""
    there = {name: value for name, value in os.environ.items() if name not in WAITING} | given
    code = "import apprentice.envs, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run([sys.executable, "-c", code], env=there, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_threads_look_for_one_another_for_a_short_while():
    assert spins() == SPINS


@pytest.mark.parametrize("name", WAITING)
def test_what_the_user_says_stays(name: str):
    assert spins(**{name: "2"}) == ("2" if name == "GOMP_SPINCOUNT" else "None")
