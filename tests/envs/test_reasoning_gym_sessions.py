"""One seed is one question whatever else runs in the server, and no session makes the others wait."""

import json
import os
import random
import subprocess
import sys
import threading

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.reasoning_gym import datasets, scoring
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, Session


@pytest.mark.parametrize("name", sorted(datasets.DRAW_GLOBALLY))
def test_a_seed_names_its_question_whatever_the_common_generators_were_at(name: str):
    entries = []
    for state in (1, 2):
        random.seed(state)
        entries.append([datasets.entry(name, {}, seed)[1] for seed in range(160)])
    assert entries[0] == entries[1]


def test_the_common_generators_are_left_as_they_were():
    random.seed(5)
    expected = random.random()
    random.seed(5)
    datasets.entry("list_functions", {}, 7)
    assert random.random() == expected


@pytest.mark.parametrize(
    "formula",
    ["9**9**9", "9^9^9", "9**999999999", "((9**99)**99)**99*((9)**99)", "99999!", "2**(9**9)", "(9**9)**9999999"],
)
def test_a_formula_that_grows_without_end_is_not_evaluated(formula: str):
    """Were it evaluated, the problem would be another one: that it took too long."""
    dataset, entry = datasets.entry("countdown", {}, 3)
    score, problem = scoring.score(dataset, entry, formula)
    assert score == 0.01, "as Reasoning Gym scores what it cannot read"
    assert problem == "the answer holds more than a bare result; it was not evaluated"


@pytest.mark.parametrize("name", sorted(scoring.RECKONED))
def test_right_formulas_are_evaluated(name: str):
    for seed in range(12):
        dataset, entry = datasets.entry(name, {}, seed)
        if entry["answer"]:
            assert scoring.score(dataset, entry, str(entry["answer"]))[0] == 1.0, f"seed {seed}: {entry['answer']}"


@pytest.mark.long
def test_a_question_that_takes_long_makes_no_other_session_wait():
    """While one session's question is made, which takes seconds, another session gets answer after answer."""
    slow = {"dataset_name": "futoshiki", "dataset_config": {"min_board_size": 8, "max_board_size": 8}, "size": 1}
    first = {"dataset_name": "chain_sum", "dataset_config": {}, "size": 1}
    with local_server("apprentice.envs.serving.serve", "reasoning_gym") as url:
        server = EnvironmentServer(url=url, message_timeout=120)
        quick, other = Session(server), Session(server)
        quick.reset(seed=1, **first)
        other.reset(seed=1, **first)  # it is open, so that its next question is asked at once
        asking = threading.Thread(target=lambda: other.reset(seed=1, **slow))
        asking.start()
        answered = 0
        while asking.is_alive():
            quick.reset(seed=answered, **first)
            answered += asking.is_alive()
        asking.join()
        quick.close()
        other.close()
    assert answered >= 10, "the quick session waited for the slow one"


def test_a_server_that_would_ask_another_question_after_its_next_start_says_so():
    code = "from apprentice.envs.reasoning_gym import datasets; datasets.check_hashing('ransom_note', ())"
    for seed, fine in (("0", True), ("random", False)):
        ran = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        assert (ran.returncode == 0) is fine
        assert fine or "start this server with PYTHONHASHSEED=0" in ran.stderr


def test_a_dataset_with_a_question_of_megabytes_is_refused(server: EnvironmentServer):
    config = {"min_terms": 100_000, "max_terms": 100_000}
    with pytest.raises(Refused, match="more than 200000"):
        Session(server).reset(dataset_name="chain_sum", dataset_config=config, seed=1, size=1)


@pytest.mark.long
def test_an_answer_that_is_a_list_is_the_json_text_of_it(server: EnvironmentServer):
    environment = EnvironmentSpec(name="reasoning_gym", settings={"dataset": "group_anagrams"}).make(Session(server))
    environment.ask(4)
    _, entry = datasets.entry("group_anagrams", {}, 4)
    environment.environment.answer(json.loads(entry["answer"]))  # type: ignore[attr-defined]
    environment.close()
    assert environment.reward == 1.0
