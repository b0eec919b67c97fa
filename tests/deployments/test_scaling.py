"""SCALING.md shows what is computed from the measured figures, and names settings and commands that there are."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import prefect.settings
import pytest
from pydantic import BaseModel

from apprentice.flows.recipe.recipe import Recipe
from tests.bench import bounds as scaling
from tests.bench.bounds import SIZES, Collection

FOLDER = scaling.DEPLOYMENTS
SCALING = (FOLDER / "SCALING.md").read_text()


def test_the_tables_in_the_document_are_what_the_module_prints():
    shown = SCALING.split("<!-- tables -->\n")[1].split("\n<!-- /tables -->")[0]
    assert shown == scaling.tables(), "run python -m tests.bench.bounds and put its tables in"


def test_every_figure_has_a_command_that_prints_it():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    names = re.findall(r"^NAMES_bench := (.*)$", makefile, re.MULTILINE)[0].split()
    for figure in json.loads((FOLDER / "figures.json").read_text()).values():
        assert figure["command"].removeprefix("make bench NAME=") in names
        assert figure["value"] > 0
        assert figure["of"]


def test_twice_the_sessions_are_twice_the_rate_until_the_loop_is_full():
    few, more, many = (Collection(20_000, sessions, latency=1.0) for sessions in (64, 128, 4_096))
    assert few.bounds()[0][1] == scaling.SESSIONS
    assert more.bounds()[0][0] == pytest.approx(2 * few.bounds()[0][0])
    assert many.bounds()[0] == (scaling.MEASURED["requests_a_second"], scaling.LOOP)


def test_a_limit_of_tokens_counts_the_answer_as_max_tokens():
    size = Collection(1_000, 64, latency=1.0, tokens_per_minute=60_000, max_tokens=800)
    assert size.bounds()[0] == (pytest.approx(1.0), scaling.TOKENS)


def test_a_limit_of_requests_bounds_the_time():
    size = Collection(1_000, 64, latency=1.0, requests_per_minute=600)
    assert size.bounds()[0] == (10.0, scaling.REQUESTS)
    assert size.seconds == pytest.approx(101.0)


def test_more_sessions_never_make_it_slower():
    seconds = [Collection(20_000, 2**power).seconds for power in range(13)]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size.episodes:,}")
def test_the_settings_have_a_quarter_more_sessions_than_requests_times_latency_or_better(size: Collection):
    rate, bound = size.bounds()[0]
    assert bound in (scaling.REQUESTS, scaling.TOKENS)
    assert size.sessions >= 1.25 * rate * size.latency


def fields_of(model: type[BaseModel]) -> dict[str, Any]:
    return {name: field.annotation for name, field in model.model_fields.items()}


def exists(path: str) -> bool:
    """Whether a recipe has the field at a dotted path."""
    model: Any = Recipe
    for name in path.split("."):
        if model is None or name not in fields_of(model):
            return False
        inner = [fields_of(model)[name], *get_args(fields_of(model)[name])]
        model = next((each for each in inner if isinstance(each, type) and issubclass(each, BaseModel)), None)
    return True


def test_every_setting_that_the_document_names_is_a_recipes():
    named = set(re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+)`", SCALING))
    assert len(named) >= 8
    assert not [name for name in named if not exists(name)]
    assert not exists("collect.sharts")
    assert not exists("collect.shards.more")


def test_every_setting_of_prefect_that_the_document_names_exists():
    named = set(re.findall(r"`(PREFECT_\w+)`", SCALING))
    assert named
    assert not [name for name in named if not hasattr(prefect.settings, name)]
