"""Before GRPO the SFT model plays each rung, and GRPO trains on the one where it is right nearest to half of the time.

The student says True whatever it is asked, and the rungs differ in how often that is so: real stages, known rates.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prefect import flow

from apprentice.envs.reasoning_gym import datasets
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.pipeline import Pipeline
from apprentice.flows.probe import Level, Probed
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import RunServers
from apprentice.tasks.analysis.difficulty import nearest_to_half
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Provenance, parent
from apprentice.tasks.artifacts.types import Artifact, BaseStudent, Checkpoint, GrpoCheckpoint, Questions, SftCheckpoint
from apprentice.tasks.cards.card import write_card
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.record import read_episodes
from apprentice.tasks.episodes.rendering import row_ids, training_row
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.files.question_lists import read_learned, read_questions
from apprentice.tasks.grpo import grpo
from apprentice.tasks.lineage.lineage import lineage_of
from apprentice.tasks.models.checkpoints import load_model, save
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.questions import questions
from apprentice.tasks.reporting.announce import StageRun
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.student import student
from apprentice.tasks.training.trainer import read_log
from tests.flows.commands import TOY

pytestmark = pytest.mark.long

PROBED = 32


def settings(true: float) -> dict[str, Any]:
    """Pairs of strings of which that share is isomorphic, True being the right answer."""
    return {"dataset": "isomorphic_strings", "config": {"max_string_length": 4, "p_solvable": true}}


RECIPE = [
    f"environment.settings={json.dumps(settings(0.9))}",
    "teacher={model: nobody}",
    "student.build={hidden_size: 32, intermediate_size: 64, layers: 1, heads: 2, max_positions: 256}",
    "grpo.max_steps=2",
    f"probe.questions={PROBED}",
]
LEVELS = [settings(1.0), settings(0.5), settings(0.0)]


class Climbed(NamedTuple):
    """What a flow left that has probed a ladder, twice, and trained on what it chose."""

    recipe: Recipe
    work: RunContext
    question_set: Questions
    warm: SftCheckpoint
    probed: Probed
    trained: GrpoCheckpoint
    second: list[StageRun]
    """What the second time ran."""

    def episodes(self, place: int) -> Any:
        return read_episodes(self.work.store.fetch(self.probed.played[place]))


def stages_of(
    work: RunContext, recipe: Recipe, evaluation_questions: Questions, model: Checkpoint | None = None
) -> Pipeline:
    stages = Pipeline(work, recipe, base=model)
    stages.questions = evaluation_questions
    return stages


def levels_of(work: RunContext, recipe: Recipe, evaluation_questions: Questions) -> list[Level]:
    return stages_of(work, recipe, evaluation_questions).levels


def probed_by(work: RunContext, recipe: Recipe, evaluation_questions: Questions, model: Checkpoint) -> Probed:
    return stages_of(work, recipe, evaluation_questions, model).task(recipe.grpo)


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory, server: EnvironmentServer, prefect_server: None) -> Climbed:
    recipe = with_levels(server, LEVELS)
    store = LocalStore(tmp_path_factory.mktemp("ladder"), "toy", describe=write_card)

    @flow
    def climb() -> Climbed:
        with RunServers(recipe) as servers:
            work = RunContext(store, servers, recipe=recipe.for_record())
            evaluation_questions = questions(work, recipe.environment, recipe.seed_windows(), recipe.evaluate.questions)
            base = student(work, recipe.student, recipe.environment, evaluation_questions, 0)
            warm = who_says_true(work, recipe, base)
            probed = probed_by(work, recipe, evaluation_questions, warm)
            assert probed
            assert recipe.grpo
            trained = grpo(work, recipe.grpo, warm, probed.environment, probed.questions, 0)
            again = RunContext(store, servers, recipe=recipe.for_record())
            assert probed_by(again, recipe, evaluation_questions, warm) == probed
        return Climbed(recipe, work, evaluation_questions, warm, probed, trained, again.log)

    return climb()


def with_levels(server: EnvironmentServer, levels: list[dict[str, Any]], *more: str) -> Recipe:
    return load_recipe(TOY, [*RECIPE, f"server.url={server.url}", f"grpo.auto_difficulty={json.dumps(levels)}", *more])


def who_says_true(work: RunContext, recipe: Recipe, base: BaseStudent) -> SftCheckpoint:
    """The student after a short training on episodes whose answer is True."""
    import torch

    tokenizer, model = load_tokenizer(work.store.fetch(base)), load_model(work.store.fetch(base))
    episodes = [row_ids(tokenizer, episode) for episode in episodes_of_true(recipe)]
    batch = tokenizer.pad({"input_ids": episodes}, padding_side="right", return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with work.store.staging() as folder:
        counts = save(model, tokenizer, folder) | {"stage": "sft"}
        made = Provenance(inputs={"student": parent(base)})
        made_by = {"stage": "by hand", "inputs": {"student": base.revision}}
        return work.store.publish(SftCheckpoint, "t" * 20, folder, counts, made_by, made)


def episodes_of_true(recipe: Recipe) -> Iterator[dict[str, Any]]:
    instance, task = recipe.environment.make(), recipe.environment.settings
    call = {"type": "function", "function": {"name": "answer", "arguments": {"answer": "True"}}}
    for seed in recipe.seed_windows().collect.seeds():
        _, entry = datasets.entry(task["dataset"], task["config"], seed)
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        heard = {"role": "tool", "content": "OK."}
        yield training_row([*prompt(instance, entry["question"]), said, heard], instance.schemas)


def test_grpo_gets_the_rung_whose_recorded_rate_is_nearest_to_half(climbed: Climbed):
    report = climbed.probed.as_json()
    assert report is not None
    rates = [level["accuracy"] for level in report["rungs"]]
    assert rates[0] > 0.8 > rates[1] > 0.2 > rates[2]
    assert report["chosen"] == nearest_to_half(rates) == 1
    assert [level["reading"] for level in report["rungs"]] == ["too easy", "right", "too hard"]
    assert climbed.probed.environment.settings == settings(0.5)
    assert (
        "GRPO trains on rung 2 of 3 (`p_solvable 0.5`), whose rate is nearest to half. **The task is right**"
        in (report["says"])
    )
    for place, level in enumerate(report["rungs"]):
        assert level["n"] == PROBED == len(climbed.episodes(place))
        assert level["accuracy"] == sum(record.is_right for record in climbed.episodes(place)) / PROBED
        assert level["ci"][0] <= level["accuracy"] <= level["ci"][1]


def test_each_rung_is_played_as_grpo_would_play_it_on_its_own_seeds(climbed: Climbed):
    window = climbed.recipe.seed_windows().grpo
    for place, level in enumerate(LEVELS):
        made_by = record_of(climbed, place)["made_by"]
        assert made_by["settings"]["environment"]["settings"] == level
        spec = made_by["settings"]["spec"]
        grpos: Any = climbed.recipe.grpo
        assert (spec["decoding"], spec["temperature"], spec["samples"]) == ("sampled", grpos.temperature, 1)
        assert spec["max_new_tokens"] == grpos.max_completion_length
        assert {episode.seed for episode in climbed.episodes(place)} <= set(window.seeds())


def test_no_examined_question_is_trained_on_or_probed_on_any_rung(climbed: Climbed):
    store = climbed.work.store
    held_out = read_questions(store.fetch(climbed.question_set), "evaluate")
    evaluation_texts = {same_text(row["question"]) for row in held_out if row["used"]}
    assert len(evaluation_texts) == climbed.recipe.evaluate.questions
    for place, level in enumerate(climbed.probed.levels):
        rows = read_questions(store.fetch(level.questions), "grpo")
        assert all(row["used"] == (same_text(row["question"]) not in evaluation_texts) for row in rows)
        assert not evaluation_texts & {same_text(episode.question) for episode in climbed.episodes(place)}
    learned = [row for row in read_learned(store.fetch(climbed.trained)) if row["stage"] == "grpo"]
    trained_on = read_questions(store.fetch(climbed.probed.questions), "grpo")
    assert {(row["seed"], row["question"]) for row in learned} <= {
        (row["seed"], row["question"]) for row in trained_on if row["used"]
    }


def test_what_a_regression_evaluation_asks_is_not_on_a_rung_that_is_the_recipes_own_task(
    server: EnvironmentServer, tmp_path: Path, prefect_server: None
):
    """Sums of two digits, of which there are so few that some of a regression evaluation's are among GRPO's."""
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "allow_negation": False}
    sums = {"dataset": "chain_sum", "config": config}
    regression = {"name": "again", "environment": {"name": "reasoning_gym", "settings": sums}, "questions": 10}
    changes = [
        f"environment.settings={json.dumps(sums)}",
        f"guards={json.dumps([regression])}",
        "evaluate.questions=10",
    ]
    recipe = with_levels(server, [sums], *changes)

    @flow
    def climb() -> None:
        with RunServers(recipe) as servers:
            work = RunContext(LocalStore(tmp_path, "toy", describe=write_card), servers, recipe=recipe.for_record())
            evaluation_questions = questions(work, recipe.environment, recipe.seed_windows(), recipe.evaluate.questions)
            [level] = levels_of(work, recipe, evaluation_questions)
            regression_questions = Pipeline(work, recipe).regression_questions["again"]
            regression_texts, own, climbed = (
                {same_text(row["question"]) for row in read_questions(work.store.fetch(each), purpose) if row["used"]}
                for each, purpose in (
                    (regression_questions, "evaluate"),
                    (evaluation_questions, "grpo"),
                    (level.questions, "grpo"),
                )
            )
            assert regression_texts & own, "else nothing is shown"
            assert climbed == own - regression_texts

    climb()


def test_what_was_chosen_is_what_grpos_key_is_made_from_and_the_ladder_is_not(climbed: Climbed):
    node = lineage_of(climbed.trained.key, climbed.work.store.root).root
    assert node.record is not None
    made_by = node.record.made_by
    assert made_by["settings"]["environment"]["settings"] == settings(0.5)
    assert made_by["inputs"]["questions"] == climbed.probed.questions.revision
    assert "auto_difficulty" not in made_by["settings"]["spec"]
    assert node.record.provenance.recipe["grpo"]["auto_difficulty"] == LEVELS


def test_for_a_curriculum_grpo_trains_on_a_mixture_of_all_rungs_and_knows_what_the_probe_found(
    climbed: Climbed, server: EnvironmentServer
):
    recipe = with_levels(server, LEVELS, "grpo.curriculum={forget: 0.0}")

    @flow
    def climb() -> tuple[Probed, GrpoCheckpoint]:
        with RunServers(recipe) as servers:
            work = RunContext(climbed.work.store, servers, recipe=recipe.for_record())
            probed = probed_by(work, recipe, climbed.question_set, climbed.warm)
            assert probed
            trained = grpo(work, probed.trains_with, climbed.warm, probed.environment, probed.questions, 0)
            return probed, trained

    probed, trained = climb()
    store = climbed.work.store
    labels = ["rung-1", "rung-2", "rung-3"]
    assert {label: level.settings for label, level in probed.environment.mixed.items()} == dict(
        zip(labels, LEVELS, strict=True)
    )
    assert probed.trains_with.curriculum
    known = probed.trains_with.curriculum.known
    assert sum(right + wrong for right, wrong in known.values()) == PROBED
    rates = [known[label][0] / sum(known[label]) for label in labels]
    assert rates[0] > 0.8 > rates[1] > 0.2 > rates[2]

    held_out = read_questions(store.fetch(climbed.question_set), "evaluate")
    evaluation_texts = {same_text(row["question"]) for row in held_out if row["used"]}
    rows = read_questions(store.fetch(probed.questions), "grpo")
    assert all(row["used"] == (same_text(row["question"]) not in evaluation_texts) for row in rows)
    learned = [row for row in read_learned(store.fetch(trained)) if row["stage"] == "grpo"]
    assert not evaluation_texts & {same_text(row["question"]) for row in learned}

    log, steps = read_log(store.fetch(trained)), 2
    question_counts = {label: sum(entry[f"curriculum/asked/{label}"] for entry in log) for label in labels}
    assert sum(question_counts.values()) == len(learned) == steps * probed.trains_with.groups_a_step
    node = lineage_of(trained.key, store.root).root
    assert node.record is not None
    assert {
        kind: tuple(each) for kind, each in node.record.made_by["settings"]["spec"]["curriculum"]["known"].items()
    } == known


def test_a_second_time_nothing_is_asked_or_played_again(climbed: Climbed):
    assert {run.state for run in climbed.second} == {"cached"}
    titles = [run.title for run in climbed.second]
    assert titles == [
        "Questions of a regression evaluation",
        *(f"Questions of rung {place}" for place in (1, 2, 3)),
        *["Questions of the probe"] * 3,
        *(f"Probe of sft on rung {place} in reasoning_gym isomorphic_strings" for place in (1, 2, 3)),
    ]


def test_their_cards_say_what_they_are(climbed: Climbed):
    def card(artifact: Artifact) -> str:
        return (climbed.work.store.fetch(artifact) / "README.md").read_text()

    def named(artifact: Artifact) -> str:
        return f"`{artifact.repository}` at tag `{artifact.key}`"

    level_questions, probe_questions = climbed.probed.questions, climbed.probed.questions_by_level[1]
    window = climbed.recipe.seed_windows().grpo
    assert f"`grpo`: seeds {window.start:,} to {window.start + window.size - 1:,} (60)." in card(level_questions)
    assert f"Kept out by their text: what is asked in {named(climbed.question_set)}" in card(level_questions)
    assert f"The first {PROBED} distinct questions for `grpo` in {named(level_questions)}" in card(probe_questions)
    assert f"The questions: {named(probe_questions)}" in card(climbed.probed.played[1])
    trained = card(climbed.trained)
    assert f"On the questions for `grpo` in {named(level_questions)}" in trained
    assert '"p_solvable": 0.5' in trained.split("### GRPO")[1].split("|")[0]


def test_a_rung_that_is_the_recipes_own_task_is_not_asked_for_twice(climbed: Climbed, server: EnvironmentServer):
    recipe = with_levels(server, [settings(0.9)], "guards=[]")

    @flow
    def climb() -> None:
        with RunServers(recipe) as servers:
            work = RunContext(climbed.work.store, servers, recipe=recipe.for_record())
            [level] = levels_of(work, recipe, climbed.question_set)
            assert (level.environment, level.questions) == (recipe.environment, climbed.question_set)
            assert not [run for run in work.log if run.name == "rung_questions"]

    climb()


def test_without_a_ladder_the_recipes_own_task_is_probed_or_nothing(climbed: Climbed, server: EnvironmentServer):
    with_probe, without = with_levels(server, []), with_levels(server, [], "probe.questions=0")

    @flow
    def look() -> None:
        for recipe in (with_probe, without):
            with RunServers(recipe) as servers:
                work = RunContext(climbed.work.store, servers, recipe=recipe.for_record())
                probed = probed_by(work, recipe, climbed.question_set, climbed.warm)
                assert probed
                assert (probed.environment, probed.questions) == (recipe.environment, climbed.question_set)
                report = probed.as_json()
                assert (report is None) == (recipe is without)
                assert [run.title for run in work.log] == (
                    []
                    if report is None
                    else ["Questions of the probe", "Probe of sft in reasoning_gym isomorphic_strings"]
                )
                assert report is None or len(report["rungs"]) == 1

    look()


@pytest.mark.parametrize(
    ("rates", "more", "why"),
    [
        ([0.0], [], "in none of 32 groups of 4 answers did the rewards differ (all wrong)"),
        ([1.0], [], "in none of 32 groups of 4 answers did the rewards differ (all right)"),
        ([1.0, 0.0], [], "in none of 32 groups of 4 answers did the rewards differ (all right)"),
        ([0.0], ["probe.on_hopeless=go_on"], ""),
        ([0.5, 0.0], [], ""),
    ],
)
def test_grpo_does_not_start_where_no_group_of_answers_differs_on_any_rung(
    climbed: Climbed, server: EnvironmentServer, rates: list[float], more: list[str], why: str
):
    recipe = with_levels(
        server, [settings(true) for true in rates], "grpo.temperature=0.01", "probe.on_hopeless=stop", *more
    )

    @flow
    def look() -> None:
        with RunServers(recipe) as servers:
            work = RunContext(climbed.work.store, servers, recipe=recipe.for_record())
            probed = probed_by(work, recipe, climbed.question_set, climbed.warm)
            assert probed
            assert why in probed.stopped
            assert bool(probed.stopped) is bool(why)
            assert len(probed.groups) == (len(rates) if why else 0), "only where the first look shows no difference"

    look()


@pytest.mark.parametrize(
    ("levels", "more", "says"),
    [
        ([settings(0.5), {"dataset": "chain_sun"}], "", r"grpo\.auto_difficulty\.1: .*did you mean 'chain_sum'"),
        ([settings(0.5), settings(0.5)], "", r"grpo\.auto_difficulty\.1 repeats an earlier level"),
        ([settings(0.5)], "probe.questions=0", r"set probe\.questions"),
    ],
)
def test_a_ladder_that_cannot_be_climbed_is_refused(
    server: EnvironmentServer, levels: list[dict[str, Any]], more: str, says: str
):
    with pytest.raises(Stop, match=says):
        with_levels(server, levels, *filter(None, [more]))


def record_of(climbed: Climbed, place: int) -> dict[str, Any]:
    folder: Path = climbed.work.store.fetch(climbed.probed.played[place])
    return json.loads((folder / "artifact.json").read_text())
