"""Our server scores an answer as Reasoning Gym does; where it does not, it says so."""

from typing import Any

import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.reasoning_gym import scoring
from apprentice.envs.reasoning_gym.env import RESCORED


def six_answers(right: str) -> list[str]:
    return [right, f"{right}\n", right[:-1], "7", "", "hello world"]


def own_score(dataset: Any, entry: dict[str, Any], answer: str) -> float | None:
    """Reasoning Gym's; None where it raises."""
    try:
        return float(dataset.score_answer(answer=answer, entry=entry))
    except Exception:  # datasets raise whatever they please on text that they did not expect
        return None


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_every_dataset_s_scores_are_reasoning_gym_s_own():
    for name in sorted(set(DATASETS) - {"composite"}):
        dataset = reasoning_gym.create_dataset(name, seed=7, size=1)
        entry = dataset[0]
        for answer in six_answers(str(entry["answer"])):
            score, problem = scoring.score(dataset, entry, answer)
            own = own_score(dataset, entry, answer)
            if own is None:
                assert score == 0.0, (name, answer)
                assert problem, (name, answer)
            else:
                assert abs(score - own) <= 1e-9, (name, answer, own, score)


@pytest.mark.long
def test_a_sum_of_tenths_that_passes_1_by_rounding_is_1():
    """spell_backward adds 1/n for each of n letters; an answer with a line break at its end is right."""
    passed = 0
    for seed in range(300):
        dataset = reasoning_gym.create_dataset("spell_backward", seed=seed, size=1)
        entry = dataset[0]
        own = dataset.score_answer(answer=f"{entry['answer']}\n", entry=entry)
        score, problem = scoring.score(dataset, entry, f"{entry['answer']}\n")
        assert abs(score - own) <= 1e-9
        assert problem is None
        passed += own > 1.0
    assert passed > 10, "the case is there"


@pytest.mark.parametrize(("own", "taken"), [(1.2, 1.0), (-0.5, 0.0), (float("nan"), 0.0), (float("inf"), 1.0)])
def test_a_score_off_the_range_is_clipped_and_said_so(own: float, taken: float):
    class Odd:
        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            return own

    score, problem = scoring.score(Odd(), {"answer": "7", "metadata": {}}, "7")
    assert score == taken
    assert problem
    assert "own score" in problem


@pytest.mark.parametrize("name", ["countdown", "puzzle24"])
def test_an_answer_that_is_not_evaluated_scores_what_an_unreadable_one_does(name: str):
    dataset = reasoning_gym.create_dataset(name, seed=7, size=1)
    score, problem = scoring.score(dataset, dataset[0], "exit()")
    assert score == 0.01
    assert problem


def test_only_the_datasets_that_are_scored_otherwise_than_before_have_a_new_version():
    versions = {
        name: EnvironmentSpec(name="reasoning_gym", settings={"dataset": name}).version
        for name in sorted(set(DATASETS) - {"composite"})
    }
    assert {name for name, version in versions.items() if version == "2"} == RESCORED
    parts = [{"name": "gcd"}, {"name": "countdown"}]
    mixed = EnvironmentSpec(name="reasoning_gym", settings={"dataset": "composite", "dataset_specs": parts})
    assert mixed.version == "2"
