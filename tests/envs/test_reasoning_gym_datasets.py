"""Every dataset of the installed Reasoning Gym can be played, and no answer harms the server."""

import inspect
import json
import random
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym
from pydantic import ValidationError
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import DATASETS

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.reasoning_gym import datasets, scoring
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, Session
from apprentice.tasks.episodes.episode import Episode

SPECS = [
    {"name": "leg_counting", "weight": 3, "config": {}},
    {"name": "spell_backward", "weight": 1, "config": {"min_word_len": 3, "max_word_len": 5}},
]
COMPOSITE = EnvironmentSpec(name="reasoning_gym", settings={"dataset": "composite", "dataset_specs": SPECS})
ODD = [
    "",
    " ",
    "7",
    "None",
    "null",
    "[[1",
    '{"a": 1}',
    "1/0",
    "x" * 15_000,
    "🙂",
    "\ud83d",
    "١٢",
    "한국어",
    "\x00",
    "(" * 500,
]


@pytest.fixture
def session(server: EnvironmentServer) -> Iterator[Session]:
    one = Session(server)
    yield one
    one.close()


def spec(name: str) -> EnvironmentSpec:
    return COMPOSITE if name == "composite" else EnvironmentSpec(name="reasoning_gym", settings={"dataset": name})


def call(answer: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "answer", "arguments": {"answer": answer}}}]}


@pytest.mark.long
def test_every_dataset_plays_and_its_own_answer_earns_everything(session: Session):
    silent = set()
    for place, name in enumerate(sorted(DATASETS)):
        environment = spec(name).make(session)
        question = environment.ask(7)
        assert environment.environment.answer(ODD[place % len(ODD)]) == "OK.", name  # type: ignore[attr-defined]
        assert environment.done, name
        assert environment.reward is not None, name
        assert 0.0 <= environment.reward <= 1.0, name
        answer = environment.correct
        assert environment.ask(7) == question != "", name
        environment.environment.answer(answer)  # type: ignore[attr-defined]
        if answer is None:
            silent.add(name)
        else:
            assert environment.reward == 1.0, name
    assert silent == datasets.WITHOUT_AN_ANSWER.keys()


@pytest.mark.parametrize("name", ["prime_factorization", "game_of_life", "boxnet", "countdown", "pool_matrix"])
def test_no_answer_costs_the_session_where_the_dataset_cannot_read_it(session: Session, name: str):
    for answer in [*ODD, 7, -3.5, None, True, [1, "a"], {"a": [None]}]:
        episode = Episode(spec(name).make(session), seed=7)
        episode.step(call(answer))
        assert episode.messages[-1]["content"] == "OK.", answer
        assert episode.done
        assert episode.reward is not None


def test_an_answer_that_cannot_be_read_earns_nothing_and_the_server_says_so(session: Session):
    session.reset(dataset_name="prime_factorization", dataset_config={}, seed=7, size=1)
    reply = session.step({"answer": "two times three"})
    assert reply.reward == reply.observation["score"] == 0.0
    assert reply.done
    assert reply.observation["dataset_metadata"]["score_problem"] == "the answer could not be read: ValueError"


def test_an_oversized_answer_is_refused_and_the_episode_goes_on(session: Session):
    environment = spec("chain_sum").make(session)
    environment.ask(7)
    with pytest.raises(ValueError, match="too long"):
        environment.environment.answer("9" * 100_000)  # type: ignore[attr-defined]
    assert not environment.done
    assert environment.environment.answer("1") == "OK."  # type: ignore[attr-defined]


def test_7_and_its_text_are_one_answer_on_the_wire(session: Session):
    question = {"dataset_name": "chain_sum", "dataset_config": {}, "seed": 7, "size": 1}
    correct = session.reset(**question) and session.step({"answer": ""}).observation["correct_answer"]
    for answer in (correct, int(correct)):
        session.reset(**question)
        assert session.step({"answer": answer}).reward == 1.0


@pytest.mark.parametrize("name", sorted(scoring.EVALUATED | scoring.RECKONED))
def test_an_answer_is_never_run_as_a_program(name: str, tmp_path: Path):
    one = reasoning_gym.create_dataset(name, seed=7, size=1)
    left = tmp_path / "left"
    programs = [
        f"open({str(left)!r}, 'w')",
        f"ｏｐｅｎ({str(left)!r}, 'w')",
        f"[open({str(left)!r}, 'w')]",
        "exit()",
        "1 .real",
    ]
    for program in programs:
        assert scoring.score(one, one[0], program)[0] < 1.0
    assert not left.exists()
    assert scoring.score(one, one[0], one[0]["answer"]) == (1.0, None)


def test_no_other_dataset_evaluates_answers():
    """By their code, so that a new version of Reasoning Gym is looked at."""
    evaluating = {
        name
        for name, (cls, _) in DATASETS.items()
        if re.search(r"\b(eval|exec|parse_expr|sympify)\(", inspect.getsource(cls.score_answer))
    }
    mere = {"number_sorting"}  # its own answer
    assert evaluating - mere == scoring.EVALUATED | scoring.RECKONED


def test_an_answer_that_takes_for_ever_is_given_up_and_the_session_lives(session: Session):
    environment = spec("countdown").make(session)
    environment.ask(7)
    environment.environment.answer("9**9**9")  # type: ignore[attr-defined]
    assert environment.reward == 0.01, "a server that reckoned on would give none"
    assert environment.ask(8)


def test_a_composite_dataset_asks_what_a_freshly_built_one_asks():
    parts = [DatasetSpec(one["name"], one["weight"], one["config"]) for one in SPECS]
    for seed in random.Random(0).sample(range(10**9), 20):
        fresh = reasoning_gym.create_dataset("composite", seed=seed, size=1, datasets=parts)[0]
        assert datasets.entry("composite", {}, seed, SPECS)[1] == fresh, f"seed {seed}"


def test_a_part_that_cannot_be_given_another_seed_makes_the_composite_be_built_anew():
    specs = [{"name": "leg_counting", "weight": 1000}, {"name": "acre", "weight": 0.001}]
    assert not datasets._built("composite", "{}", json.dumps(specs))[1]
    assert datasets._built("composite", "{}", json.dumps(SPECS))[1]


def test_a_composite_task_draws_from_all_of_its_parts_and_tells_which_one_asked(session: Session):
    environment = COMPOSITE.make(session)
    parts = [environment.slices(seed, environment.ask(seed))["dataset"] for seed in range(40)]
    assert parts.count("leg_counting") > parts.count("spell_backward") > 0


@pytest.mark.long
def test_a_seed_is_one_question_on_two_servers_also_where_a_dataset_looks_into_sets(session: Session):
    hashed = ["isomorphic_strings", "polynomial_multiplication", "ransom_note", "composite"]
    with local_server("apprentice.envs.serving.serve", "reasoning_gym") as url:
        other = Session(EnvironmentServer(url=url))
        for name in hashed:
            assert spec(name).make(session).ask(5) == spec(name).make(other).ask(5), name
        other.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dataset": "chainsum"}, "did you mean 'chain_sum'"),
        ({"dataset": "composite"}, "composite takes dataset_specs"),
        ({"dataset": "composite", "dataset_specs": [{"name": "leg_countin"}]}, "did you mean 'leg_counting'"),
        ({"dataset": "composite", "dataset_specs": [{"name": "composite"}]}, "cannot be composite itself"),
        ({"dataset": "composite", "dataset_specs": [{"name": "gcd", "weight": 0}]}, "greater than 0"),
        ({"dataset": "chain_sum", "dataset_specs": [{"name": "gcd"}]}, "not for chain_sum"),
        ({"dataset": "chain_sum", "config": {"seed": 3}}, "seed cannot be set"),
    ],
)
def test_settings_that_name_no_dataset_are_refused_in_words(settings: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        EnvironmentSpec(name="reasoning_gym", settings=settings)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"dataset_name": "composite"}, "composite takes dataset_specs"),
        ({"dataset_name": "composite", "dataset_specs": ["gcd"]}, "names its dataset"),
        ({"dataset_name": "composite", "dataset_specs": [{"name": "gcd"}, {"name": "gcd"}]}, "Duplicate"),
        ({"dataset_name": "chain_sum", "dataset_config": {"terms": 3}}, "terms"),
        ({"dataset_name": "chain_sum", "dataset_config": {"min_terms": "many"}}, "refuses chain_sum"),
        ({"dataset_name": "chain_sum", "seed": "seven"}, "refuses chain_sum"),
        ({"dataset_name": "chain_sum", "size": 0}, "size must be"),
        ({"dataset_name": "acre", "size": 10**9}, "size must be"),
    ],
)
def test_the_server_refuses_what_names_no_question_in_words_and_plays_on(
    session: Session, wrong: dict[str, Any], words: str
):
    with pytest.raises(Refused, match=words):
        session.reset(**({"seed": 1, "size": 1} | wrong))
    assert session.reset(dataset_name="gcd", dataset_config={}, seed=1, size=1).observation["question"]


def test_the_environments_page_counts_the_datasets_and_names_those_without_an_answer():
    page = (Path(datasets.__file__).parent / "README.md").read_text()
    assert f"All {len(DATASETS)} of version {version('reasoning-gym')} work" in page
    assert (
        set(re.findall(r"`(\w+)`", page.split("score any valid one:\n")[1].split(". ")[0]))
        == datasets.WITHOUT_AN_ANSWER.keys()
    )
