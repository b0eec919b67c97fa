"""What became of each episode, and how two models differ on the same ones."""

from apprentice.tasks.analysis.outcomes import both_ways, failures_by_kind, outcome_of
from tests.tasks.evaluations import episode, episodes


def test_an_episode_is_right_or_has_one_kind_of_failure():
    assert outcome_of(episode(0, 1.0)) == "right"
    assert outcome_of(episode(0, None, broken="gone", causes=["no tool call"])) == "environment failed"
    assert outcome_of(episode(0, 0.0, causes=["no tool call", "unknown tool"])) == "no tool call"
    assert outcome_of(episode(0, 0.3)) == "partly right"
    assert outcome_of(episode(0, 0.0)) == "wrong answer"


def test_kinds_are_counted_by_model_the_last_models_most_frequent_first():
    before = [episode(n, 0.0, causes=["no tool call"]) for n in range(3)]
    after = [episode(0, 0.0), episode(1, 0.0), episode(2, 1.0)]
    assert failures_by_kind({"sft": before, "grpo": after}) == [
        {"kind": "wrong answer", "models": {"sft": 0, "grpo": 2}},
        {"kind": "no tool call", "models": {"sft": 3, "grpo": 0}},
    ]


def test_two_models_are_both_right_or_one_or_none():
    found = both_ways({"sft": episodes([1, 1, 0, 0, 0]), "grpo": episodes([1, 0, 1, 0, 0])}, [("sft", "grpo")])
    assert found == [{"from": "sft", "to": "grpo", "both": 1, "lost": 1, "won": 1, "neither": 2}]
