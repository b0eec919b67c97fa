"""Faults against real processes: too long for `make test`, run by `make faults NAME=collect`.

A run ends with one line of JSON: what each fault cost.
"""

import json
from typing import Any

import pytest

_rows: list[dict[str, Any]] = []


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """Where a test notes what it found."""
    return _rows


def pytest_unconfigure() -> None:
    print(json.dumps({"faults": _rows}))
