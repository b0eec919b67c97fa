"""What the probe asks of its stages, level by level, and what it says; the stages are stand-ins."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.flows import probe as probes
from apprentice.flows.probe import Rung, ladder, probe
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.analysis.difficulty import nearest_to_half
from apprentice.tasks.settings.spec import EvaluateSpec
from tests.flows.commands import TOY

OWN = ["probe.questions=16", "grpo.num_generations=4", "probe.on_hopeless=stop"]
EASY, OTHER, HARD = ({"dataset": "spell_backward", "config": {"min_word_len": n, "max_word_len": 5}} for n in (2, 4, 5))
RUNGS = f"grpo.auto_difficulty={json.dumps([EASY, OTHER, HARD])}"
MODEL: Any = SimpleNamespace(stage="sft")


class Work:
    """The run, and everything that was asked of it: titles, settings, questions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, accuracies: list[float], differ: tuple[int, ...] = ()):
        self.run: Any = SimpleNamespace(store=SimpleNamespace(fetch=lambda made: made))
        self.asked: list[tuple[Any, ...]] = []
        self.told: list[tuple[str, str]] = []
        self.title = ""
        groups = iter(differ)

        def titled(title: str) -> Any:
            self.title = title
            return evaluated

        def evaluated(_run: Any, spec: EvaluateSpec, *given: Any) -> Any:
            self.asked.append((self.title, spec, *given))
            rate = accuracies[(len(self.asked) - 1) % len(accuracies)]
            return SimpleNamespace(
                accuracy=rate, n=spec.questions, format_compliance=1.0, mean_score=rate, questions=None, worth=None
            )

        monkeypatch.setattr(probes, "evaluate", SimpleNamespace(titled=titled))
        monkeypatch.setattr(probes, "probe_questions", lambda run, questions, n: f"{n} of {questions}")
        monkeypatch.setattr(probes, "read_episodes", lambda folder: [f"{folder.accuracy}"])
        monkeypatch.setattr(probes, "groups_that_differ", lambda records, exact: (next(groups), 16))
        for how in ("warn", "say", "detail"):
            monkeypatch.setattr(probes.announce, how, lambda text, how=how: self.told.append((how, text)))
        for how in ("rows", "markdown"):
            monkeypatch.setattr(probes.announce, how, lambda key, *_: self.told.append((key, "")))


def rungs_of(recipe: Recipe) -> list[Rung]:
    levels = recipe.rungs() or [recipe.environment]
    return [Rung(each, f"questions {number}") for number, each in enumerate(levels, 1)]  # type: ignore[arg-type]


def plays(recipe: Recipe, samples: int) -> EvaluateSpec:
    assert recipe.grpo
    return EvaluateSpec(
        samples=samples,
        questions=16,
        decoding="sampled",
        temperature=recipe.grpo.temperature,
        max_new_tokens=recipe.grpo.max_completion_length,
        batch_size=recipe.evaluate.batch_size,
    )


@pytest.mark.parametrize("overrides", [["grpo=off"], ["probe.questions=0"]])
def test_without_a_probe_nothing_is_played_and_nothing_reported(overrides: list[str], monkeypatch: pytest.MonkeyPatch):
    recipe, work = load_recipe(TOY, overrides), Work(monkeypatch, [0.5])
    found = probe(work.run, recipe, rungs_of(recipe), MODEL)
    assert (found is None) == (recipe.grpo is None)
    assert found is None or (found.as_json(), found.environment, found.questions) == (
        None,
        recipe.environment,
        "questions 1",
    )
    assert not work.asked + work.told


@pytest.mark.parametrize("levels", [1, 3])
def test_each_level_is_played_as_grpo_plays_and_the_one_nearest_to_half_is_trained_on(
    levels: int, monkeypatch: pytest.MonkeyPatch
):
    recipe = load_recipe(TOY, [*OWN, "grpo.temperature=0.7", *([RUNGS] if levels > 1 else [])])
    work = Work(monkeypatch, [0.9, 0.4, 0.0][:levels])
    rungs = rungs_of(recipe)
    found = probe(work.run, recipe, rungs, MODEL)
    assert found
    titles = ["", *[f" on rung {number}" for number in (1, 2, 3)]][-levels:] if levels > 1 else [""]
    assert work.asked == [
        (
            f"Probe of sft{title} in {{environment}}",
            plays(recipe, 1),
            MODEL,
            rung.environment,
            f"16 of {rung.questions}",
            recipe.seed,
        )
        for title, rung in zip(titles, rungs, strict=True)
    ]
    assert (found.chosen, found.groups, found.stopped) == (levels // 2, [], "")
    assert found.environment == rungs[found.chosen].environment
    assert list(found.artifacts()) == [*(each.questions for each in rungs), *found.asked, *found.played]
    report = found.as_json()
    assert report
    assert (report["chosen"], report["stopped"]) == (found.chosen, "")
    assert [each["settings"] for each in report["rungs"]] == [each.environment.settings for each in rungs]
    assert ("rung 2 of 3 (" in report["says"]) == (levels > 1)
    assert [how for how, _ in work.told] == ["probe", "say" if levels > 1 else "warn", "difficulty"]


@pytest.mark.parametrize(
    ("accuracies", "differ", "played", "place"),
    [
        ([0.0, 0.0, 1.0], (1,), [2], 2),
        ([0.0, 0.0, 1.0], (0, 1), [2, 0], 0),
        ([0.0, 0.0, 1.0], (0, 0, 2), [2, 0, 1], 1),
        ([0.0, 0.0, 1.0], (0, 0, 0), [2, 0, 1], None),
        ([0.0, 0.5, 1.0], (), [], 1),
    ],
)
def test_where_every_level_is_all_or_nothing_groups_are_played_until_one_differs(
    accuracies: list[float], differ: tuple[int, ...], played: list[int], place: int | None, monkeypatch: Any
):
    recipe = load_recipe(TOY, [*OWN, RUNGS])
    first = nearest_to_half(accuracies)
    order = [first, *(each for each in range(3) if each != first)][: len(differ)] if differ else []
    work = Work(monkeypatch, accuracies, differ)
    rungs = rungs_of(recipe)
    found = probe(work.run, recipe, rungs, MODEL)
    assert found
    assert work.asked[3:] == [
        (
            "Groups of sft in {environment}",
            plays(recipe, 4),
            MODEL,
            rungs[each].environment,
            f"16 of questions {each + 1}",
            recipe.seed,
        )
        for each in order
    ]
    assert len(order) == len(played) == len(found.groups)
    assert list(found.artifacts())[-len(found.groups) or 9 :] == found.groups
    if differ and not any(differ):
        assert found.chosen == first
        assert found.stopped.startswith("GRPO did not start: in none of 16 groups of 4 answers")
        assert ("warn", found.stopped) in work.told
    else:
        assert found.stopped == ""
        assert found.chosen == (order[-1] if order else first)
        assert not [text for how, text in work.told if how == "warn" and "did not start" in text]


def test_who_insists_trains_on_a_hopeless_task(monkeypatch: pytest.MonkeyPatch):
    recipe, work = load_recipe(TOY, [*OWN, "probe.on_hopeless=go_on"]), Work(monkeypatch, [0.0])
    found = probe(work.run, recipe, rungs_of(recipe), MODEL)
    assert found
    assert (len(work.asked), found.groups, found.stopped) == (1, [], "")
    ((_, said),) = [each for each in work.told if each[0] == "warn"]
    assert said.startswith("The task is too hard")
    assert not set("*`") & set(said)


def test_a_curriculum_knows_what_the_probe_found_and_keeps_what_it_was_told(monkeypatch: pytest.MonkeyPatch):
    recipe, work = load_recipe(TOY, [*OWN]), Work(monkeypatch, [0.5])
    assert recipe.grpo
    curriculum = SimpleNamespace(by="kind", known={"b": 2}, model_copy=lambda update: ("copied", update))
    grpo = recipe.grpo.model_copy(update={"curriculum": curriculum})
    asked: list[Any] = []
    monkeypatch.setattr(probes, "right_and_wrong", lambda records, by: asked.append((records, by)) or {"a": 1, "b": 1})
    found = probe(work.run, recipe.model_copy(update={"grpo": grpo}), rungs_of(recipe), MODEL)
    assert found
    assert found.grpo.curriculum == ("copied", {"known": {"a": 1, "b": 2}})
    assert asked == [(["0.5"], "kind")]


@pytest.mark.parametrize("guards", [True, False])
def test_a_ladder_asks_each_level_apart_from_every_examined_question(guards: bool, monkeypatch: pytest.MonkeyPatch):
    recipe = load_recipe(TOY, [*OWN])
    assert recipe.grpo
    own: Any = "the recipe's questions"
    work = Work(monkeypatch, [0.5])
    assert ladder(work.run, recipe, own) == [Rung(recipe.environment, own)]
    levels = json.dumps([EASY, recipe.environment.settings])
    recipe = load_recipe(TOY, [*OWN, f"grpo.auto_difficulty={levels}", *([] if guards else ["guards=[]"])])
    asked: list[Any] = []

    def titled(title: str) -> Any:
        return lambda run, *given: asked.append((title, *given)) or f"asked {len(asked)}"

    monkeypatch.setattr(probes, "rung_questions", SimpleNamespace(titled=titled))
    monkeypatch.setattr(probes, "guard_questions", lambda run, recipe: {"guard": "g"} if recipe.guards else {})
    first, second = recipe.rungs()
    excluded = {"held_out": own} | ({"guard": "g"} if guards else {})
    made = ladder(work.run, recipe, own)
    assert made == [Rung(first, "asked 1"), Rung(second, "asked 2" if guards else own)]  # type: ignore[arg-type]
    window = recipe.seed_windows().grpo
    expected = [(f"Questions of rung {number}", each, window, excluded) for number, each in ((1, first), (2, second))]
    assert asked == expected[: 2 if guards else 1]


def test_a_curriculum_is_checked_on_the_questions_that_grpo_asks(monkeypatch: pytest.MonkeyPatch):
    recipe, work = load_recipe(TOY, OWN), Work(monkeypatch, [0.5])
    assert recipe.grpo
    curriculum = SimpleNamespace(by="kind", levels=[])
    recipe = recipe.model_copy(update={"grpo": recipe.grpo.model_copy(update={"curriculum": curriculum})})
    rows, checked = [{"seed": 1}], []
    monkeypatch.setattr(probes, "used_questions", lambda folder, window: checked.append((folder, window)) or rows)
    monkeypatch.setattr(probes, "kinds_of", lambda *given: checked.append(given))
    ladder(work.run, recipe, "asked")  # type: ignore[arg-type]
    assert checked == [("asked", "grpo"), (recipe.environment, rows, "kind")]
