"""The model of what a run costs: it is what SCALING.md shows, agrees with a simulation, and moves the right way."""

import random
import re
from pathlib import Path
from typing import Any, get_args

import prefect.settings
import pytest
from pydantic import BaseModel

from apprentice.deployments import scaling
from apprentice.deployments.scaling import SIZES, Size, World
from apprentice.envs.server import EnvironmentServer
from apprentice.flows.recipe import Recipe
from apprentice.tasks.specs import CollectSpec, TeacherSpec

SCALING = (Path(scaling.__file__).parent / "SCALING.md").read_text()


def between(marker: str) -> str:
    """What stands between two marker comments."""
    return SCALING.split(f"<!-- {marker} -->\n")[1].split(f"\n<!-- /{marker} -->")[0]


def bounded_by_latency(latency: float = 1.0, sessions: int = 64, turns: int = 1) -> Size:
    server = EnvironmentServer(sessions=sessions, shared=False)
    return Size(20_000, env=server, collect=CollectSpec(shards=8), world=World(latency=latency, turns=turns))


def bounded_by_requests(requests: float = 600.0, sessions: int = 64) -> Size:
    return bounded_by_latency(sessions=sessions)._replace(teacher=TeacherSpec(requests_per_minute=requests))


def bounded_by_loop() -> Size:
    size = bounded_by_latency(latency=0.01)
    return size._replace(world=size.world._replace(failing=0.0))  # to be sent again takes longer than all the rest


def test_the_tables_in_the_document_are_what_the_model_prints():
    assert between("tables") == scaling.tables(), "run python -m apprentice.deployments.scaling and put its tables in"


def test_the_document_has_a_place_for_what_was_measured():
    assert between("measured")


@pytest.mark.parametrize(
    ("size", "bound"),
    [
        (bounded_by_latency(), scaling.LATENCY),
        (bounded_by_latency(turns=6), scaling.LATENCY),
        (bounded_by_requests(), scaling.REQUESTS),
        (bounded_by_loop(), scaling.LOOP),
    ],
    ids=["latency", "six turns", "requests", "loop"],
)
def test_the_simulation_agrees_with_the_formula_within_5_percent(size: Size, bound: str):
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}")
    assert scaling.slowest(size)[1] == bound
    assert scaling.simulated_seconds(size, seed) == pytest.approx(scaling.play_seconds(size), rel=0.05)


def test_the_simulation_plays_the_same_for_the_same_seed():
    size = bounded_by_latency()
    assert (
        scaling.simulated_seconds(size, 3) == scaling.simulated_seconds(size, 3) != scaling.simulated_seconds(size, 4)
    )


def test_twice_the_latency_is_half_the_rate_where_latency_bounds():
    once, twice = (scaling.slowest(bounded_by_latency(latency))[0] for latency in (1.0, 2.0))
    assert twice == pytest.approx(once / 2, rel=0.01)


def test_twice_the_sessions_are_twice_the_rate_where_latency_bounds():
    once, twice = (scaling.slowest(bounded_by_latency(sessions=sessions))[0] for sessions in (64, 128))
    assert twice == pytest.approx(2 * once)


def test_a_limit_of_requests_bounds_and_is_kept():
    size = bounded_by_requests(600.0)
    rate, bound = scaling.slowest(size)
    assert bound == scaling.REQUESTS
    assert rate * scaling.asks(size) == pytest.approx(10.0)
    assert scaling.simulated_seconds(size) >= size.episodes / 10.0 - scaling.BURST_S


def test_a_limit_of_tokens_counts_the_answer_as_max_tokens():
    teacher = TeacherSpec(tokens_per_minute=60_000, max_tokens=800)
    size = bounded_by_latency()._replace(teacher=teacher, world=World(prompt_tokens=200, failing=0.0))
    assert scaling.slowest(size) == (pytest.approx(1.0), scaling.TOKENS)


def test_a_server_that_grants_fewer_sessions_than_are_asked_for_bounds():
    size = bounded_by_latency(sessions=64)
    few = size._replace(world=size.world._replace(granted=4))
    assert scaling.slowest(few)[1] == scaling.SESSIONS
    assert scaling.slowest(few)[0] == pytest.approx(scaling.slowest(size)[0] / 16)


def test_one_client_holds_a_thousand_connections_and_more_shards_hold_more():
    size = bounded_by_latency(latency=20.0, sessions=4_000)
    alone = size._replace(collect=CollectSpec(shards=1))
    assert scaling.in_use(alone) == (1_000, scaling.CONNECTIONS)
    assert scaling.in_use(size) == (4_000, scaling.LATENCY)


@pytest.mark.parametrize("size", [bounded_by_latency(), bounded_by_requests()], ids=["latency", "requests"])
def test_more_sessions_never_make_it_slower(size: Size):
    counts = [2**power for power in range(13)]
    sizes = [size._replace(env=EnvironmentServer(sessions=count, shared=False)) for count in counts]
    rates = [scaling.slowest(each)[0] for each in sizes]
    seconds = [scaling.play_seconds(each) for each in sizes]
    assert rates == sorted(rates)
    assert seconds == sorted(seconds, reverse=True)


def test_more_gpus_in_one_stage_never_make_it_slower_and_never_help_collection():
    for episodes, size in SIZES.items():
        estimates = [scaling.estimate(size._replace(gpus=gpus), together=True) for gpus in scaling.GPUS]
        seconds = [each.seconds for each in estimates]
        assert seconds == sorted(seconds, reverse=True), episodes
        assert len({each.of("collect") for each in estimates}) == 1


def test_as_built_more_gpus_make_no_run_faster_and_carry_more_of_them():
    for size in SIZES.values():
        assert len({scaling.estimate(size._replace(gpus=gpus)).seconds for gpus in scaling.GPUS}) == 1
        a_day = [scaling.runs_a_day(size._replace(gpus=gpus))[0] for gpus in scaling.GPUS]
        assert a_day == sorted(a_day)
        assert a_day[1] > a_day[0]


def test_ten_times_the_episodes_cost_ten_times_the_teacher_within_the_budget():
    size = SIZES[300]
    assert scaling.teacher_usd(size._replace(episodes=3_000)) == pytest.approx(10 * scaling.teacher_usd(size))
    for each in SIZES.values():
        assert each.teacher.budget_usd is not None
        assert 1.5 * scaling.teacher_usd(each) <= each.teacher.budget_usd


def test_task_runs_do_not_grow_with_the_episodes():
    few, many = (scaling.estimate(SIZES[300]._replace(episodes=episodes)) for episodes in (300, 10_000_000))
    assert few.task_runs == many.task_runs


def test_the_tutorials_take_the_time_that_they_report():
    """The assumptions about the GPU rest on this: 5 minutes of SFT, an hour of GRPO."""
    made = scaling.estimate(SIZES[300])
    assert made.of("sft") == pytest.approx(5 * 60, rel=0.1)
    assert made.of("grpo") == pytest.approx(60 * 60, rel=0.1)


@pytest.mark.parametrize("size", SIZES.values(), ids=[f"{episodes:,}" for episodes in SIZES])
def test_the_settings_have_a_quarter_more_sessions_than_requests_times_latency_or_better(size: Size):
    rate, bound = scaling.slowest(size)
    assert bound in (scaling.REQUESTS, scaling.TOKENS)
    assert scaling.in_use(size)[0] >= 1.25 * rate * scaling.episode_s(size)


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
    assert set(scaling.SHOWN) <= named
    assert not [name for name in named if not exists(name)]
    assert not exists("collect.sharts")
    assert not exists("collect.shards.more")


def test_every_setting_of_prefect_that_the_document_names_exists():
    named = set(re.findall(r"`(PREFECT_\w+)`", SCALING))
    assert named
    assert not [name for name in named if not hasattr(prefect.settings, name)]
