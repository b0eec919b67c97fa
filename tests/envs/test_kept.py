"""What takes long to find out is found out once on a machine, and again where it cannot be kept."""

import json
from pathlib import Path

import pytest

from apprentice.envs.defaults import kept
from apprentice.tasks.settings import trl_arguments
from apprentice.tasks.settings.sft_settings import SftSpec


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "apprentice"


def test_a_number_is_found_once_for_each_key_and_others_stay(cache: Path):
    found: list[float] = []

    def find() -> float:
        found.append(len(found) + 0.5)
        return found[-1]

    assert [kept("speed", key, find) for key in ("here", "here", "there", "here")] == [0.5, 0.5, 1.5, 0.5]
    assert json.loads((cache / "speed.json").read_text()) == {"here": 0.5, "there": 1.5}
    assert [each.name for each in cache.iterdir()] == ["speed.json"]


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"here": "fast"}'])
def test_what_cannot_be_read_is_found_again(damaged: str, cache: Path):
    cache.mkdir()
    (cache / "speed.json").write_text(damaged)
    assert kept("speed", "here", lambda: 2.0) == 2.0
    assert json.loads((cache / "speed.json").read_text()) == {"here": 2.0}


def test_where_nothing_can_be_written_it_is_found_each_time(cache: Path):
    cache.write_text("a file where the folder would be")
    assert [kept("speed", "here", lambda: 2.0) for _ in range(2)] == [2.0, 2.0]


def test_what_is_refused_is_not_kept(cache: Path):
    with pytest.raises(ZeroDivisionError):
        kept("speed", "here", lambda: 1 / 0)
    assert not cache.exists()


def test_a_recipes_arguments_are_checked_by_trl_once_and_wrong_ones_each_time(monkeypatch: pytest.MonkeyPatch):
    checked: list[str] = []
    config_class = trl_arguments._config_class
    monkeypatch.setattr(trl_arguments, "_config_class", lambda spec: checked.append(spec) or config_class(spec))
    for value in (0.1, 0.1, 0.2):
        trl_arguments.check_arguments(SftSpec, {"weight_decay": value})
    assert checked == [SftSpec, SftSpec], "0.1 once, 0.2 once"
    for _ in range(2):
        with pytest.raises(ValueError, match="weight_decay: 'much' is not of the type float"):
            trl_arguments.check_arguments(SftSpec, {"weight_decay": "much"})
    assert checked[2:] == [SftSpec, SftSpec]
