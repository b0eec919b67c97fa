"""What the parts of a run hand to their stages, which are stand-ins here: no option of the recipe is lost on a path."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.flows import phases
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.recipe.sections import RoundSpec
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import DatasetSpec, EvaluateSpec, MixSpec, Seeds
from tests.flows.commands import TOY


class Stage:
    """Keeps what it is given, and answers with its name and how often it was asked."""

    def __init__(self, name: str):
        self.name = name
        self.titles: list[str] = []
        self.given: list[tuple[Any, ...]] = []

    def titled(self, title: str) -> "Stage":
        self.titles.append(title)
        return self

    def __call__(self, _run: Any, *given: Any) -> str:
        self.given.append(given)
        return f"{self.name} {len(self.given)}"


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> dict[str, Stage]:
    named = ("evaluate", "sft", "lengths", "filter_rollouts", "mix_rollouts", "exam", "gate", "release", "collect")
    found = {name: Stage(name) for name in (*named, "take_rollouts", "questions", "fresh_questions")}
    for name, each in found.items():
        monkeypatch.setattr(phases, name, each)
    made = Stage("made_or_rescored")
    monkeypatch.setattr(
        phases, "made_or_rescored", lambda run, make, given, always: made(run, make.name, given, always)
    )
    return found | {"made": made}


@pytest.fixture
def run() -> Any:
    """A run's work, whose artifacts are named by what is asked for."""
    store = SimpleNamespace(at=lambda kind, revision: f"{kind.__name__} {revision}", fetch=Path, in_reach="in reach")
    return SimpleNamespace(store=store)


def recipe(*overrides: str, **sections: Any) -> Recipe:
    return load_recipe(TOY, list(overrides)).model_copy(update=sections)


ROUND = RoundSpec(number=1, asked=["a", "b"], kept=["c"])


def test_a_round_asks_fresh_questions_and_another_run_those_of_its_windows(run: Any, stages: dict[str, Stage]):
    plain = recipe()
    assert phases.asked(run, plain) == "questions 1"
    assert stages["questions"].given == [(plain.environment, plain.seed_windows(), plain.evaluate.questions)]
    later = recipe(round=ROUND)
    assert phases.asked(run, later) == "fresh_questions 1"
    ((*given, earlier, shares),) = stages["fresh_questions"].given
    assert given == [later.environment, later.seed_windows(), later.evaluate.questions]
    assert (earlier, shares) == ({"0": "Questions a", "1": "Questions b"}, None)


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [(["sft.control=true"], True), (["sft.control=false"], False), (["sft.control=true", "grpo=off"], False)],
)
def test_the_control_is_sft_to_its_best_where_grpo_follows(
    overrides: list[str], wanted: bool, run: Any, stages: dict[str, Stage]
):
    given = recipe(*overrides)
    made: Any = phases.control(run, given, "base", "kept", "lengths")  # type: ignore[arg-type]
    assert made == ({"control": "sft 1"} if wanted else {})
    assert given.sft is not None
    expected = [(given.sft.to_its_best(), "base", "kept", "lengths", given.seed)] if wanted else []
    assert stages["sft"].given == expected
    assert stages["sft"].titles == (["SFT to its best"] if wanted else [])


def test_every_model_is_evaluated_on_the_held_out_questions_and_on_each_guard_rail(run: Any, stages: dict[str, Stage]):
    given = recipe("evaluate.temperature=0.3")
    models: Any = {"base": "b", "grpo": "g"}
    assert phases.held_out(run, given, "asked", models) == {  # type: ignore[arg-type]
        "base": "evaluate 1",
        "grpo": "evaluate 2",
    }
    of_all = given.environment, "asked", given.seed
    assert stages["evaluate"].given == [(given.evaluate, model, *of_all) for model in ("b", "g")]
    assert stages["evaluate"].titles == [f"Evaluation of {name} in {{environment}}" for name in models]
    (own,) = given.guards
    wide = own.model_copy(update={"name": "wide", "max_new_tokens": 99})
    given = given.model_copy(update={"guards": [own, wide]})
    assert list(phases.guard_rails(run, given, models)) == [
        *("longer-words.base", "longer-words.grpo"),
        *("wide.base", "wide.grpo"),
    ]
    specs = [
        given.evaluate.model_copy(update={"max_new_tokens": tokens, "questions": own.questions}) for tokens in (16, 99)
    ]
    assert stages["evaluate"].given[2:] == [
        (spec, model, own.environment, f"exam {number}", given.seed)
        for number, spec in enumerate(specs, 1)
        for model in ("b", "g")
    ]
    assert stages["evaluate"].titles[2] == "Guard rail longer-words: base"
    assert stages["exam"].given == [(own.environment, given.guard_window(index), own.questions) for index in range(2)]


@pytest.mark.parametrize(
    ("overrides", "stage", "baseline"),
    [
        ([], "base", "sft"),
        ([], "sft", "base"),
        (["grpo=off"], "base", "base"),
        (["student={model: a/b, revision: c}"], "base", "base"),
    ],
)
def test_a_built_student_has_no_skill_to_protect(overrides: list[str], stage: str, baseline: str):
    base: Any = SimpleNamespace(stage=stage)
    assert phases.protected(recipe(*overrides), base) == baseline


def test_the_student_tries_each_question_as_it_will_in_grpo(
    run: Any, stages: dict[str, Stage], monkeypatch: pytest.MonkeyPatch
):
    asked = SimpleNamespace(evaluate=7)
    monkeypatch.setattr(phases, "tried_questions", lambda run, questions: asked)
    for own, temperature in ((["grpo.temperature=0.7"], 0.7), (["grpo=off"], 1.0)):
        given = recipe("collect.students=3", *own)
        phases._tries(run, given, "questions", "base")  # type: ignore[arg-type]
        spec = EvaluateSpec(
            questions=7, decoding="sampled", temperature=temperature, max_new_tokens=16, batch_size=20, samples=3
        )
        assert stages["evaluate"].given[-1] == (spec, "base", given.environment, asked, given.seed)
    assert stages["evaluate"].titles[-1] == "Tries of the student in {environment}"


ECHO = DatasetSpec(path="rows.jsonl")


@pytest.mark.parametrize(
    ("overrides", "sections", "stage"),
    [
        ([], {}, "filter_rollouts"),
        (["collect.students=2", "collect.keep=3"], {}, "mix_rollouts"),
        (["improve.replay=0.25"], {"round": ROUND}, "mix_rollouts"),
        (["improve.replay=0.25", "collect.students=2"], {"teacher": None}, "mix_rollouts"),
    ],
)
def test_lessons_are_the_teachers_or_a_mixture_of_all_players(
    overrides: list[str],
    sections: Any,
    stage: str,
    run: Any,
    stages: dict[str, Stage],
    monkeypatch: pytest.MonkeyPatch,
):
    given = recipe(*overrides, **sections)
    taken: list[Any] = []
    bought = None if given.teacher is None else "rollouts"
    monkeypatch.setattr(phases, "_tries", lambda run, recipe, questions, base: f"tries of {questions}, {base}")
    monkeypatch.setattr(phases, "rollouts_of", lambda run, *given: taken.append(given) or bought)
    rollouts, kept = phases._lessons(run, given, "questions", "base", True)  # type: ignore[arg-type]
    tries = "tries of questions, base" if given.collect.students else None
    assert taken == [(given, "questions", tries, True)]
    assert (rollouts, kept) == (bought, f"{stage} 1")
    if stage == "filter_rollouts":
        assert stages[stage].given == [("rollouts", "questions")]
        return
    spec = MixSpec(keep=given.collect.keep, replay=0.25 if given.round else 0.0)
    earlier = {"0": "KeptRollouts c"} if given.round else {}
    called = given.teacher.called if given.teacher else ""
    assert stages[stage].given == [(spec, given.environment, "questions", bought, tries, earlier, called, given.seed)]


@pytest.mark.parametrize("rescore", [True, False])
def test_rollouts_are_taken_or_collected_from_all_or_from_chosen_seeds(
    rescore: bool, run: Any, stages: dict[str, Stage], monkeypatch: pytest.MonkeyPatch
):
    rows = [{"seed": 5}, {"seed": 7}]
    looked: list[Any] = []
    ahead = [7]
    monkeypatch.setattr(phases, "used_questions", lambda folder, window: looked.append((folder, window)) or rows)
    monkeypatch.setattr(phases, "read_episodes", lambda folder: [f"episode of {folder}"])
    monkeypatch.setattr(phases, "for_the_teacher", lambda *given: looked.append(given) or ahead)
    taken = recipe("collect.unverified=keep")
    taken = taken.model_copy(update={"collect": taken.collect.model_copy(update={"dataset": ECHO})})
    phases.rollouts_of(run, taken, "asked", None, rescore)  # type: ignore[arg-type]
    given = ECHO, taken.environment, "asked", "keep"
    assert stages["made"].given.pop() == ("take_rollouts", given, rescore)
    assert phases.rollouts_of(run, recipe(teacher=None), "asked") is None  # type: ignore[arg-type]
    plain = recipe("collect.asks=2")
    phases.rollouts_of(run, plain, "asked", None, rescore)  # type: ignore[arg-type]
    given = plain.collect.by_teacher(), plain.teacher, plain.environment, plain.seed_windows().collect
    assert stages["made"].given.pop() == ("collect", given, rescore)
    assert not looked
    some = recipe("collect.students=2", "collect.teacher_questions=1")
    phases.rollouts_of(run, some, "asked", "tries", rescore)  # type: ignore[arg-type]
    given = some.collect.by_teacher(), some.teacher, some.environment, Seeds(chosen=(7,))
    assert stages["made"].given.pop() == ("collect", given, rescore)
    assert looked == [(Path("asked"), "collect"), ([5, 7], ["episode of tries"], 1)]
    phases.rollouts_of(run, some, "asked", None, rescore)  # type: ignore[arg-type]
    assert looked[-1] == ([5, 7], [], 1)
    ahead.clear()
    stages["made"].given.clear()
    assert phases.rollouts_of(run, some, "asked", "tries") is None  # type: ignore[arg-type]
    assert not stages["made"].given


def test_teaching_hands_on_each_artifact_and_warns_of_a_model_that_learned_nothing(
    run: Any, stages: dict[str, Stage], monkeypatch: pytest.MonkeyPatch
):
    warned: list[str] = []
    monkeypatch.setattr(phases, "_lessons", lambda *given: ("rollouts", f"kept {given[-1]}"))
    monkeypatch.setattr(phases, "read_log", lambda folder: f"log of {folder}")
    monkeypatch.setattr(phases, "learned_nothing", lambda log: f"nothing in the {log}")
    monkeypatch.setattr(phases, "control", lambda *given: {"control": "best"})
    monkeypatch.setattr(phases.announce, "warn", warned.append)
    given = recipe()
    taught = phases.teach(run, given, "questions", "base", True)  # type: ignore[arg-type]
    assert taught is not None
    assert taught.artifacts() == ["rollouts", "kept True", "lengths 1", "sft 1", "best"]
    assert taught._replace(rollouts=None).artifacts() == ["kept True", "lengths 1", "sft 1", "best"]
    assert stages["lengths"].given == [(given.lengths, "kept True", "base")]
    assert stages["sft"].given == [(given.sft, "base", "kept True", "lengths 1", given.seed)]
    assert warned == ["nothing in the log of sft 1"]
    monkeypatch.setattr(phases, "learned_nothing", lambda log: "")
    phases.teach(run, given, "questions", "base")  # type: ignore[arg-type]
    assert len(warned) == 1
    assert phases.teach(run, recipe(sft=None), "questions", "base") is None  # type: ignore[arg-type]


@pytest.mark.parametrize("champion", [None, "other weights", "same weights"])
@pytest.mark.parametrize("is_round", [True, False])
def test_the_gate_compares_with_the_champion_or_with_the_student_and_a_round_always_decides(
    champion: str | None, is_round: bool, run: Any, stages: dict[str, Stage], monkeypatch: pytest.MonkeyPatch
):
    now = SimpleNamespace(weights=champion, stage="champion") if champion else None
    promoted: list[Any] = []
    champions = SimpleNamespace(
        current=lambda: now,
        was_rolled_back=lambda weights: f"was {weights}",
        promote=lambda release, before: promoted.append((release, before)) or True,
    )
    given = recipe(round=ROUND if is_round else None)
    rules = phases.decided_by(given.gate, {"longer-words": given.guards[0].may_fall})
    monkeypatch.setattr(phases, "Champions", lambda store: champions)
    monkeypatch.setattr(phases, "weights_of", lambda folder: f"{folder} weights")
    monkeypatch.setattr(phases, "read_decision", lambda folder: {"decided_by": json.loads(json.dumps(rules))})
    run.store.fetch = lambda each: each if isinstance(each, str) else "the champion's"
    base: Any = SimpleNamespace(stage="base")
    evaluations: Any = {"base": "e-base", "sft": "e-sft", "grpo": "e-grpo"}
    guards: Any = {f"longer-words.{name}": f"g-{name}" for name in ("base", "sft", "grpo")}
    outcome = phases.promotion(run, given, "asked", base, "same", evaluations, guards, "judged")  # type: ignore[arg-type]
    if champion == "same weights" and not is_round:
        assert (outcome.release, outcome.is_champion, outcome.by_these_rules) == (now, True, True)
        rules["has_floor"] = False
        again = phases.promotion(run, given, "asked", base, "same", evaluations, guards, "judged")  # type: ignore[arg-type]
        assert not again.by_these_rules
        assert not stages["gate"].given
        return
    rival, rivals = (now, ("evaluate 1", "evaluate 2")) if now else (base, ("e-base", "g-sft"))
    assert stages["gate"].given == [
        (
            given.gate,
            "same",
            rival,
            {"challenger": "e-grpo", "rival": rivals[0]},
            {"longer-words.challenger": "g-grpo", "longer-words.rival": rivals[1]},
            {"longer-words": given.guards[0].may_fall},
            "judged",
            "was same weights",
            "in reach",
        )
    ]
    assert stages["release"].given == [("same", "judged", "gate 1")]
    assert promoted == [("release 1", now)]
    assert outcome == ("release 1", True, True)


def test_a_run_continues_from_the_model_that_its_recipe_names(run: Any, monkeypatch: pytest.MonkeyPatch):
    checked: list[Any] = []
    current: list[Any] = [None]
    named = {"0123456": "the checkpoint"}
    run.store.root = "artifacts"
    monkeypatch.setattr(phases, "Champions", lambda store: SimpleNamespace(current=lambda: current[0]))
    monkeypatch.setattr(phases, "checkpoint_named", lambda store, name: named.get(name))
    monkeypatch.setattr(phases, "_check_fits", lambda store, recipe, found: checked.append(found))
    assert phases.begun_from(run.store, recipe()) is None
    assert phases.begun_from(run.store, recipe(round=RoundSpec(number=1))) is None
    assert phases.begun_from(run.store, recipe(round=RoundSpec(number=1, champion="c"))) == "Release c"
    goes_on = recipe("student={champion: true}")
    with pytest.raises(Stop, match="toy has no champion to continue from"):
        phases.begun_from(run.store, goes_on)
    current[0] = "the champion"
    assert phases.begun_from(run.store, goes_on) == "the champion"
    assert phases.begun_from(run.store, recipe("student={checkpoint: '0123456'}")) == "the checkpoint"
    with pytest.raises(Stop, match="6543210 is no model of toy in artifacts"):
        phases.begun_from(run.store, recipe("student={checkpoint: '6543210'}"))
    assert checked == ["Release c", "the champion", "the checkpoint"]
