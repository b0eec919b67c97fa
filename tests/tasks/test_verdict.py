"""What is compared, and what is not compared at all."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.tools import tools_text
from apprentice.tasks.advice.ending import paid, read_verdict, unclean
from apprentice.tasks.analysis.comparison import compare, compare_all
from apprentice.tasks.artifacts.types import GrpoCheckpoint, Rollouts
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.record import EvaluatedEpisode, Record
from apprentice.tasks.judgement.contents import Comparison, Contamination
from apprentice.tasks.judgement.rules import GateSpec
from apprentice.tasks.statistics.rates import per_question, with_intervals
from apprentice.tasks.verdict import verdict
from tests.tasks.evaluations import episode, episodes, evaluation, learned, published


def test_every_comparison_is_corrected_for_all_of_them():
    held_out = {"base": episodes([0.0] * 40), "sft": episodes([1.0] * 20 + [0.0] * 20), "grpo": episodes([1.0] * 40)}
    regression_records = {
        "sums.base": episodes([1.0] * 10),
        "sums.grpo": episodes([0.0] * 10),
        "words.base": episodes([1.0] * 10),
        "words.grpo": episodes([1.0] * 10),
    }
    found = compare_all(held_out, regression_records)
    assert [(each["from"], each["to"], each["delta"]) for each in found["comparisons"]] == [
        ("base", "sft", 0.5),
        ("sft", "grpo", 0.5),
    ]
    assert [(each["guard"], each["delta"]) for each in found["guards"]] == [("sums", -1.0), ("words", 0.0)]
    assert found["guards"][0]["before"] == {"n": 10, "accuracy": 1.0, "ci": (pytest.approx(0.722, abs=1e-3), 1.0)}
    together = [*found["comparisons"], *found["guards"]]
    assert all(each["p_holm"] >= each["p_value"] for each in together)
    assert found["comparisons"][0]["p_holm"] == pytest.approx(4 * found["comparisons"][0]["p_value"])


def comparisons_of(held_out: dict[str, list[float]]) -> list[Comparison]:
    found = compare_all({name: episodes(rewards) for name, rewards in held_out.items()}, {})["comparisons"]
    return [Comparison(**each) for each in found]


def with_control(control: list[float], grpo: list[float]) -> list[Comparison]:
    return comparisons_of({"base": [0.0] * 40, "sft": [1.0] * 10 + [0.0] * 30, "control": control, "grpo": grpo})


def shown(comparisons: list[Comparison]) -> Comparison:
    found = paid(comparisons)
    assert found
    return found


def test_a_gain_is_over_sft_at_its_best_where_that_was_measured():
    found = with_control(control=[1.0] * 20 + [0.0] * 20, grpo=[1.0] * 36 + [0.0] * 4)
    assert [(each.from_, each.to, each.delta) for each in found] == [
        ("base", "sft", 0.25),
        ("sft", "control", 0.25),
        ("control", "grpo", 0.4),
        ("sft", "grpo", 0.65),
    ]
    assert found[2].p_holm == pytest.approx(3 * found[2].p_value), "the second smallest of four"
    assert paid(found) is found[2], "whether GRPO paid is read off the model that it must beat"


def test_a_gain_over_stopped_sft_alone_is_told_as_none():
    found = with_control(control=[1.0] * 38 + [0.0] * 2, grpo=[1.0] * 36 + [0.0] * 4)
    assert found[3].ci[0] > 0, "GRPO betters the SFT that it started from"
    assert shown(found).delta == pytest.approx(-0.05)


def test_a_gain_within_its_noise_beats_nobody():
    """Three questions won and one lost, of forty."""
    found = with_control(control=[1.0] * 20 + [0.0] * 20, grpo=[0.0] + [1.0] * 22 + [0.0] * 17)
    assert found[2].delta > 0 > found[2].ci[0]
    assert shown(found).ci[0] < 0


def test_without_a_control_the_gain_is_over_the_sft_that_grpo_started_from():
    found = comparisons_of({"base": [0.0] * 40, "sft": [1.0] * 20 + [0.0] * 20, "grpo": [1.0] * 40})
    assert (shown(found).from_, shown(found).delta) == ("sft", 0.5)


def test_where_grpo_did_not_start_the_control_is_compared_with_sft():
    found = comparisons_of({"base": [0.0] * 4, "sft": [1.0] * 2 + [0.0] * 2, "control": [1.0] * 3 + [0.0]})
    assert [(each.from_, each.to) for each in found] == [("base", "sft"), ("sft", "control")]
    assert paid(found) is None


def test_models_that_were_asked_other_questions_are_not_compared():
    other = [record.model_copy(update={"question": "Another?"}) for record in episodes([1.0] * 3)]
    for asked in (other, episodes([1.0] * 4)):
        with pytest.raises(ValueError, match="not asked the same questions"):
            compare(episodes([1.0] * 3), asked)


def test_an_untrained_student_that_was_asked_fewer_is_compared_on_these():
    found = comparisons_of({"base": [0.0] * 4, "sft": [1.0] * 3 + [0.0] * 7, "grpo": [1.0] * 5 + [0.0] * 5})
    assert [each.delta for each in found] == [0.75, pytest.approx(0.2)]


def sampled(rewards: list[list[float]]) -> list:
    samples = len(rewards[0])
    return [
        episode(question * samples + sample, reward, sample=sample, question=f"Question {question}?")
        for question, each in enumerate(rewards)
        for sample, reward in enumerate(each)
    ]


def test_several_samples_of_a_question_are_one_value_and_give_pass_at_k():
    records = sampled([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    assert per_question(records, "accuracy") == [0.5, 1.0, 0.0, 0.5]
    found = with_intervals(records)
    assert (found["n"], found["accuracy"], found["samples"]) == (4, 0.5, 2)
    assert [(row["k"], row["pass_at_k"]) for row in found["pass_at_k"]] == [(1, 0.5), (2, 0.75)]


def test_one_sample_of_a_question_needs_no_pass_at_k():
    assert "pass_at_k" not in with_intervals(episodes([1.0, 0.0]))


def test_the_refusal_says_what_was_seen_and_what_to_do():
    shared = Contamination(shared_with_training=3, questions=40, share=0.075, clean=False)
    assert "3 of the 40 questions by text (7.5%; gate.max_overlap allows 0.0%)" in unclean(shared)
    assert "Move windows.evaluate" in unclean(shared)


# --- the stage --------------------------------------------------------------------------------------------------------


@pytest.fixture
def judged(context: StageContext, chain_sum: EnvironmentSpec) -> Callable[..., dict[str, Any]]:
    """The verdict on three models over forty questions, whose GRPO was trained on the given rows of learned.jsonl."""

    def run(
        trained_on: str, gate: GateSpec | None = None, grpo: list[EvaluatedEpisode] | None = None, beta: float = 0.0
    ) -> dict[str, Any]:
        store, instance = context.run.store, chain_sum.make()
        models = {"base": episodes([0.0] * 40), "sft": episodes([1.0] * 20 + [0.0] * 20)}
        models |= {"grpo": grpo or episodes([1.0] * 36 + [0.0] * 4)}
        regression_records = {"sums.base": episodes([1.0] * 10), "sums.grpo": episodes([0.0] * 10)}
        named = {name: evaluation(store, f"{name:-<20}", records) for name, records in models.items()}
        regression_evaluations = {
            name: evaluation(store, f"{name:-<20}", records) for name, records in regression_records.items()
        }
        record = Record(
            seed=1,
            environment="reasoning_gym 1",
            messages=prompt(instance, "1 + 2 ="),
            tools=tools_text(instance.tools),
            reward=1.0,
        )
        counts = dict.fromkeys(("failed", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"), 0)
        counts |= {"episodes": 1, "cost_usd": 0}
        rollouts = published(store, Rollouts, "r" * 20, {"rollouts.jsonl": record.line().decode()}, counts)
        log = [{"step": n, "loss": 0.0, "reward": 0.6 - 0.01 * n, "frac_reward_zero_std": 0.3} for n in range(40)]
        files = {"learned.jsonl": trained_on, "log.json": json.dumps(log)}
        files["signals.json"] = json.dumps({"signals": [], "rules": {}})
        checkpoint = published(store, GrpoCheckpoint, "g" * 20, files, {"parameters": 1})
        given = gate or GateSpec(), named, regression_evaluations, chain_sum, rollouts, checkpoint, beta
        counted = verdict.body(context, *given)
        return read_verdict(context.out).as_json() | {"counted": counted}

    return run


def test_a_clean_evaluation_is_compared(judged):
    report = judged(learned(("sft", 1, "1 + 2 ="), ("grpo", 100, "Something else?")))
    assert [(each["from"], each["to"], each["delta"]) for each in report["comparisons"]] == [
        ("base", "sft", 0.5),
        ("sft", "grpo", pytest.approx(0.4)),
    ]
    assert [each["delta"] for each in report["guards"]] == [-1.0]
    assert report["counted"] == {"diagnosis": "learning", "contaminated": False}
    assert "held-out ones do" in report["grpo"]["advice"], "the logged rewards fell, and more was right in the end"
    assert report["models"]["grpo"]["accuracy"] == 0.9


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(("grpo", 1, "QUESTION  7?"), id="by its text"),
        pytest.param(("sft", 5007, "Another text?"), id="by its seed"),
    ],
)
def test_nothing_is_compared_once_training_has_seen_a_question(judged, row: tuple[str, int, str]):
    report = judged(learned(row))
    assert (report["comparisons"], report["guards"]) == ([], [])
    assert report["counted"]["contaminated"]
    assert not report["contamination"]["clean"]
    assert report["models"]["grpo"]["accuracy"] == 0.9, "the rates are told"


def test_the_recipe_may_allow_a_share_that_training_has_seen(judged):
    seen = learned(*(("grpo", place, f"Question {place}?") for place in range(2)))
    assert judged(seen, GateSpec(max_overlap=0.05))["comparisons"]
    assert not judged(seen, GateSpec(max_overlap=0.04))["comparisons"]


def test_what_broke_for_one_model_counts_against_it(judged):
    broke = [episode(place, 1.0) if place else episode(0, None, broken="crashed") for place in range(40)]
    report = judged("", grpo=broke)
    assert report["models"]["grpo"]["accuracy"] == 39 / 40
    assert "1 of grpo" in report["broken"]


def test_a_fall_of_the_reward_is_read_with_the_recipes_beta(judged):
    worse = episodes([1.0] * 5 + [0.0] * 35)
    assert "no KL term" in judged("", grpo=worse)["grpo"]["advice"]
    assert "no KL term" not in judged("", grpo=worse, beta=0.04)["grpo"]["advice"]


def test_a_sign_of_reward_hacking_ends_the_run_with_its_episodes(judged):
    report = judged("", grpo=[episode(place, 1.0, messages=[]) for place in range(40)])
    (sign,) = report["signs"]
    assert (sign["kind"], sign["places"]) == ("reward without the tool", [0, 1, 2])
    assert judged("")["signs"] == []
