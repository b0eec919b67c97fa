"""Which questions a curriculum asks, and what it makes of the answers."""

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from apprentice.tasks.rollouts.sampling import ByRewards, Curriculum, InOrder, refilling
from apprentice.tasks.rollouts.streams import Stream
from apprentice.tasks.settings.grpo_settings import CurriculumSpec, GrpoSpec
from apprentice.tasks.statistics.question_kinds import QUESTIONS, RATE

GROUP = 4
TRAINER: Any = SimpleNamespace(num_generations=GROUP, num_iterations=1, state=SimpleNamespace(global_step=10**9))
KINDS = ["easy", "middling", "hard"]
RIGHT: dict[str, list[float | None]] = {"easy": [1, 1, 1, 1], "middling": [1, 0, 1, 0], "hard": [0.5, 0, 0, 0.9]}
LOST: dict[str, list[float | None]] = dict.fromkeys(KINDS, [None] * GROUP)


def curriculum(each: int = 100, seed: int = 0, known: Any = None, **settings: Any) -> Curriculum:
    """With `each` questions of every kind, whose seeds tell it."""
    kinds = [kind for _ in range(each) for kind in KINDS]
    rows = [{"seed": n, "kind": kind} for n, kind in enumerate(kinds)]
    return Curriculum(CurriculumSpec(known=known or {}, **settings), rows, kinds, seed)


def tensor(rewards: list[list[float | None]]) -> Any:
    import torch

    return torch.tensor([[float("nan") if reward is None else reward] for group in rewards for reward in group])


def step(of: Curriculum, answers: dict[str, list[float | None]] = RIGHT, count: int = 30) -> list[str]:
    """Asks and answers a step; the kinds that it asked."""
    kinds = [row["kind"] for row in of.take(TRAINER, 0, count)]
    of.learn(TRAINER, tensor([answers[kind] for kind in kinds]))
    return kinds


def test_a_kind_that_is_right_half_of_the_time_is_asked_more_than_those_that_are_always_or_never_right():
    asks = curriculum()
    first = step(asks)
    assert [first.count(kind) for kind in KINDS] == [10, 10, 10], "nothing is known yet"
    step(asks)
    third = step(asks)
    assert third.count("middling") > 20
    assert 0 < third.count("easy") < 5
    assert 0 < third.count("hard") < 5, "partial credit is no right answer"


def test_no_kind_falls_below_its_floor_and_at_1_the_questions_own_mixture_is_asked():
    asks = curriculum(known={"easy": (10**9, 0), "hard": (0, 10**9)}, floor=0.3)
    assert asks.shares() == pytest.approx({"easy": 0.1, "middling": 0.8, "hard": 0.1})
    even = curriculum(known={"easy": (10**9, 0)}, floor=1.0)
    assert even.shares() == pytest.approx(dict.fromkeys(KINDS, 1 / 3))


def test_a_rare_kind_is_not_asked_as_often_as_a_frequent_one_of_the_same_rate():
    rows = [{"seed": n} for n in range(100)]
    asks = Curriculum(CurriculumSpec(), rows, ["rare"] * 10 + ["frequent"] * 90, 0)
    assert asks.shares() == pytest.approx({"rare": 0.1, "frequent": 0.9})


def test_what_the_probe_knew_counts_before_the_first_step():
    asks = curriculum(known={"easy": (48, 0), "middling": (24, 24), "hard": (0, 48)})
    first = step(asks)
    assert first.count("middling") > 20


def test_what_infrastructure_lost_is_no_evidence():
    asks, forgetful = curriculum(forget=0.0), curriculum(forget=0.5)
    for each in (asks, forgetful):
        step(each)
    before, faded = asks.state()["known"]["answers"], forgetful.state()["known"]["answers"]
    step(asks, LOST)
    step(forgetful, LOST)
    assert asks.state()["known"]["answers"] == before
    assert forgetful.state()["known"]["answers"] == {
        kind: [each / 2 for each in known] for kind, known in faded.items()
    }
    step(asks, {kind: [None, 1, None, 0] for kind in KINDS})
    grown = {kind: sum(known) - sum(before[kind]) for kind, known in asks.state()["known"]["answers"].items()}
    assert sum(grown.values()) == 30 * 2, "of each group the two that were played"


def test_what_is_known_fades_so_that_a_kind_that_became_right_is_left_for_the_next():
    asks = curriculum(forget=0.2)
    for _ in range(5):
        step(asks)
    later: dict[str, list[float | None]] = {"easy": [1, 1, 1, 1], "middling": [1, 1, 1, 1], "hard": [1, 0, 1, 0]}
    kinds = [step(asks, later) for _ in range(25)]
    assert kinds[0].count("middling") > kinds[0].count("hard")
    assert kinds[-1].count("hard") > 15 > kinds[-1].count("middling")


def test_each_kind_is_asked_in_its_order_and_again_from_its_first_question():
    asks = curriculum(each=4)
    seen: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for _ in range(5):
        for row in asks.take(TRAINER, 0, 6) + asks.take(TRAINER, 6, 3):
            seen[row["kind"]].append(row["seed"])
        asks.learn(TRAINER, tensor([[1.0, 0.0, 0.0, 0.0]] * 9))
    for place, kind in enumerate(KINDS):
        own = [place, place + 3, place + 6, place + 9]
        assert len(seen[kind]) > 4
        assert seen[kind] == (own * 9)[: len(seen[kind])]


def test_the_same_seed_asks_the_same_and_another_one_other_questions():
    rounds = [[step(asks) for _ in range(3)] for asks in (curriculum(), curriculum(), curriculum(seed=1))]
    assert rounds[0] == rounds[1] != rounds[2]


def test_a_restored_state_goes_on_as_the_one_that_was_saved_and_a_step_that_failed_is_asked_again():
    import json

    whole, resumed = curriculum(), curriculum()
    step(whole)
    resumed.restore(json.loads(json.dumps(whole.state())))
    failed = resumed.take(TRAINER, 0, 30) + resumed.take(TRAINER, 30, 10)
    resumed.restore(json.loads(json.dumps(resumed.state())))
    assert resumed.take(TRAINER, 0, 30) + resumed.take(TRAINER, 30, 10) == failed
    assert [step(resumed) for _ in range(4)] == [step(whole) for _ in range(4)]
    assert resumed.state() == whole.state()


def test_resumed_between_two_uses_of_the_same_questions_those_are_asked_again_and_heard_once():
    def at(global_step: int) -> Any:
        return SimpleNamespace(num_iterations=2, state=SimpleNamespace(global_step=global_step))

    asks = curriculum()
    first = asks.take(at(0), 0, 9)
    asks.learn(TRAINER, tensor([[1.0, 0.0, 0.0, 0.0]] * 9))
    assert asks.take(at(1), 0, 9) == first
    asks.learn(TRAINER, tensor([[1.0, 1.0, 0.0, 0.0]] * 9))
    assert asks.take(at(2), 0, 9) != first
    known = asks.state()["known"]
    assert (known["steps"], sum(known["asked"].values())) == (1, 9)
    assert [sum(answers) for answers in known["answers"].values()] == [12.0] * 3


def test_the_metrics_say_what_a_step_asked_and_the_rate_of_each_kind_after_it():
    asks = curriculum(forget=0.5)
    asks.take(TRAINER, 0, 6)
    asks.learn(TRAINER, tensor([[1.0, 0.0, 0.0, None]] * 6))
    asks.take(TRAINER, 0, 3)
    metrics = asks.learn(TRAINER, tensor([[1.0, 1.0, 1.0, None]] * 3))
    assert {kind: metrics[QUESTIONS + kind] for kind in KINDS} == dict.fromkeys(KINDS, 1.0)
    right, wrong = 1 + 2 * 1 / 2 + 3, 1 + 2 * 2 / 2
    assert {kind: metrics[RATE + kind] for kind in KINDS} == pytest.approx(
        dict.fromkeys(KINDS, right / (right + wrong))
    )


def test_in_a_mixture_only_each_environments_own_reward_says_whether_an_answer_is_right():
    import torch

    streams = [Stream("a"), Stream("a", "greens"), Stream("b"), Stream("b", "greens")]
    asks = Curriculum(CurriculumSpec(forget=0.0), [{"seed": 0}, {"seed": 1}], ["a", "b"], 0, streams)
    [first, second] = (row["seed"] for row in asks.take(TRAINER, 0, 2))
    nan = float("nan")
    played = {0: [[1.0, 0.0, nan, nan]] * 4, 1: [[nan, nan, 0.5, 1.0]] * 4}
    asks.learn(TRAINER, torch.tensor(played[first] + played[second]))
    assert asks.state()["known"]["answers"] == {"a": [4.0, 0.0], "b": [0.0, 4.0]}


def test_a_step_asks_its_first_and_its_further_questions_from_the_curriculum():
    spec = GrpoSpec(batch_size=4 * GROUP, gradient_accumulation=1, num_generations=GROUP, oversample=2.0)
    usual: Any = {"multi_objective_aggregation": "normalize_then_sum", "num_generations": GROUP}
    trainer, asks = SimpleNamespace(**usual, num_iterations=1, state=TRAINER.state), curriculum()
    policy = ByRewards(spec, asks)
    first = policy.first(trainer)
    assert [row["seed"] for row in first[::GROUP]] == [row["seed"] for row in first[GROUP - 1 :: GROUP]]
    dead: list[list[float | None]] = [[1.0] * GROUP] * 4
    further = policy.further(trainer, tensor(dead))
    seeds = {row["seed"] for row in first + further}
    assert len(seeds) == 8
    found = policy.finished(trainer, tensor(dead * 2))
    assert found["refill/questions"] == 8.0 == sum(found[QUESTIONS + kind] for kind in KINDS)


def test_without_a_curriculum_the_trainer_and_the_key_are_as_they_were():
    plain, spec = GrpoSpec(), GrpoSpec.model_validate({"curriculum": True})
    assert spec.curriculum == CurriculumSpec()
    assert refilling(dict, plain, InOrder(plain, [])) is dict
    assert "curriculum" not in plain.in_key()
    assert spec.in_key() == plain.in_key() | {"curriculum": {"by": [], "floor": 0.2, "forget": 0.05, "known": {}}}
    assert GrpoSpec.model_validate({"curriculum": False}) == plain
    assert GrpoSpec.model_validate({"curriculum": {"by": "word_len"}}).curriculum == CurriculumSpec(by=("word_len",))
    levels = [GrpoSpec.model_validate({"curriculum": given}).curriculum for given in ("reasoning_gym", ["gcd", "lcm"])]
    assert levels == [CurriculumSpec(levels="own"), CurriculumSpec(levels=("gcd", "lcm"))]
    with pytest.raises(ValidationError, match=r"curriculum\.floor"):
        GrpoSpec.model_validate({"curriculum": {"floor": 0.0}})
