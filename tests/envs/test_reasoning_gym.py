"""A question is its seed, on any server; the server refuses what does not name a question whole."""

import random

import pytest
import reasoning_gym

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.reasoning_gym import datasets, env
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, Session
from tests.conftest import TASKS

DATASETS = [
    "chain_sum",
    "spell_backward",
    "letter_counting",
    "simple_equations",
    "propositional_logic",
    "leg_counting",
]


@pytest.mark.parametrize("name", [*DATASETS, "palindrome_generation", "word_ladder", "sudoku", "countdown"])
def test_an_entry_from_a_reused_dataset_is_the_one_that_a_fresh_dataset_gives(name: str):
    for seed in random.sample(range(10**9), 3):
        fresh = reasoning_gym.create_dataset(name, seed=seed, size=1)[0]
        assert datasets.entry(name, {}, seed)[1] == fresh, f"seed {seed}"


@pytest.mark.long
def test_the_same_seed_is_the_same_question_on_two_servers(server: EnvironmentServer):
    with local_server("apprentice.envs.serving.serve", "reasoning_gym") as other:
        for task in TASKS.values():
            here, there = task.make(Session(server)), task.make(Session(EnvironmentServer(url=other)))
            questions = [(here.ask(seed), there.ask(seed)) for seed in (7, 100_000_000, 7)]
            here.close()
            there.close()
            assert all(one == two for one, two in questions), task
            assert questions[0] == questions[2] != questions[1], task


def test_every_reset_sends_dataset_configuration_seed_and_size(chain_sum: EnvironmentSpec):
    sent = []

    class Recording(Session):
        def reset(self, **question):
            sent.append(question)
            return super().reset(**question)

    environment = chain_sum.make(Recording(EnvironmentServer(url="http://127.0.0.1:9", patience=0.1)))
    for seed in (1, 2):
        with pytest.raises(Exception, match="127"):
            environment.environment.reset(seed=seed, prompt=[{"role": "user", "content": ""}])
    config = chain_sum.settings["config"]
    assert sent == [dict(dataset_name="chain_sum", dataset_config=config, seed=seed, size=1) for seed in (1, 2)]


@pytest.mark.parametrize(
    "bare",
    [{}, {"seed": 1}, {"dataset_name": "chain_sum"}, {"dataset_name": "chain_sum", "seed": 1}],
)
def test_the_server_refuses_a_reset_that_does_not_name_its_question_whole(server: EnvironmentServer, bare: dict):
    with pytest.raises(Refused, match="names its question whole"):
        Session(server).reset(**bare)


def test_a_configuration_that_the_dataset_refuses_comes_back_as_words(server: EnvironmentServer):
    with pytest.raises(Refused, match="max_terms must be >= min_terms"):
        Session(server).reset(dataset_name="chain_sum", dataset_config={"min_terms": 3, "max_terms": 2}, seed=1, size=1)


def test_the_tools_last_reply_gives_nothing_away(task: EnvironmentSpec, server: EnvironmentServer):
    environment = task.make(Session(server))
    replies = set()
    for seed, answer in (
        (1, "x"),
        (
            1,
            env.call(task.settings, [{"role": "user", "content": environment.ask(1)}], 0.0)[1]["answer"],
        ),
    ):
        environment.ask(seed)
        replies.add(environment.environment.answer(answer))  # type: ignore[attr-defined]
    assert len(replies) == 1


def test_a_call_after_the_end_is_refused_and_changes_no_reward(chain_sum: EnvironmentSpec, server: EnvironmentServer):
    environment = chain_sum.make(Session(server))
    environment.ask(3)
    environment.environment.answer("no number")  # type: ignore[attr-defined]
    before = environment.reward
    with pytest.raises(ValueError, match="over"):
        environment.environment.answer("1")  # type: ignore[attr-defined]
    assert environment.reward == before != 1.0


def test_the_scripted_policy_is_right_and_errs_on_the_share_it_is_told(
    task: EnvironmentSpec, server: EnvironmentServer
):
    environment = task.make(Session(server))
    right = {0.0: 0, 0.1: 0}
    for error_rate in right:
        for seed in range(300):
            question = environment.ask(seed)
            name, arguments = env.call(task.settings, [{"role": "user", "content": question}], error_rate)
            environment.act(name, arguments)
            right[error_rate] += environment.reward == 1.0
    assert right[0.0] == 300
    assert 255 <= right[0.1] <= 285
