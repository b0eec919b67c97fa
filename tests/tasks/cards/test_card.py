"""A stranger finds out from a card what an artifact is and how it was made, and nothing that it should not say."""

import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import DatasetCard
from markdown_it import MarkdownIt

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.recipe.sections import StoreSpec
from apprentice.flows.runtime.servers import open_store
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import parent, read_record
from apprentice.tasks.artifacts.types import Artifact, Evaluation, GrpoCheckpoint, KeptRollouts, Questions, RolloutShard
from apprentice.tasks.cards.card import TEMPLATES
from apprentice.tasks.cards.dataset_facts import DatasetFacts
from apprentice.tasks.cards.model_facts import ModelFacts
from apprentice.tasks.lineage.node import Node
from apprentice.tasks.settings.endpoint import EndpointSpec, TeacherSpec
from apprentice.tasks.settings.spec import CollectSpec, EvaluateSpec, Seeds, StudentSpec, ThinkingSpec
from tests.tasks.family import BUILT, CLEAN, Family, card

THINKER = BUILT.model_copy(update={"thinking": ThinkingSpec(mode="text", max_tokens=96)})
QWEN = StudentSpec(model="Qwen/Qwen3-1.7B", revision="c0ffee")
SEEN = CLEAN | {"shared_with_training": 2, "share": 0.5, "clean": False}


@pytest.fixture
def family(tmp_path: Path, chain_sum: EnvironmentSpec) -> Family:
    return Family(LocalStore(tmp_path / "store", "toy", license="apache-2.0"), tmp_path, chain_sum)


def other(tmp_path: Path, environment: EnvironmentSpec, **given: Any) -> Family:
    return Family(LocalStore(tmp_path / "store", "toy"), tmp_path, environment, **given)


def test_every_card_has_metadata_that_the_hub_s_client_reads(family: Family):
    for artifact in family.all():
        data = card(family.store, artifact).data.to_dict()
        assert data["license"] == "apache-2.0"
        assert data["language"] == ["en"]
        assert data["tags"][:2] == ["apprentice", "openenv"]
        assert data["tags"][3] == "reasoning_gym"


def test_a_dataset_of_rows_names_its_files_and_its_size_and_a_judgement_has_no_rows_to_view(family: Family):
    data = card(family.store, family.kept).data
    assert data.configs == [{"config_name": "kept", "data_files": "kept.jsonl"}]
    assert data.size_categories == ["n<1K"]
    assert data.task_categories == ["text-generation"]
    assert card(family.store, family.verdict).data.viewer is False


def test_a_released_model_names_what_it_derives_from_and_what_it_reached(family: Family):
    data = card(family.store, family.release).data
    assert (data.base_model, data.base_model_relation) == ("local/toy-base", "finetune")
    assert data.datasets == ["local/toy-kept-rollouts"]
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    rates = {result.metric_type: result.metric_value for result in data.eval_results}
    assert rates == {"accuracy": 0.75, "format_compliance": 1.0, "mean_score": 0.875}
    eval_result = data.eval_results[0]
    low, high = eval_result.metric_args["confidence_interval_95"]
    assert eval_result.metric_args["n"] == 4
    assert low < 0.75 < high
    assert (eval_result.dataset_type, eval_result.dataset_revision) == ("local/toy-questions", family.questions.key)
    assert eval_result.dataset_name == "reasoning_gym chain_sum"
    assert eval_result.dataset_args["environment"]["settings"]["config"]["max_terms"] == 3


def test_a_trained_model_has_an_example_for_the_hubs_widget(family: Family):
    [example] = card(family.store, family.release).data.widget
    roles = [message["role"] for message in example["messages"]]
    assert roles == ["system", "user"]
    assert "12 + 34" in example["messages"][1]["content"]
    assert "widget" not in card(family.store, family.base).data.to_dict()


def test_a_model_whose_examination_was_seen_in_training_claims_no_result(tmp_path: Path, chain_sum: EnvironmentSpec):
    family = other(tmp_path, chain_sum, contamination=SEEN)
    found = card(family.store, family.release)
    assert found.data.eval_results is None
    assert "training had seen 2 of them by text" in found.text
    assert "no figure of it says anything" in found.text
    assert "Nothing was compared" in found.text


def test_a_model_s_card_tells_settings_sources_curves_and_limits(family: Family):
    text = card(family.store, family.release).text
    for source in (family.grpo, family.sft, family.base, family.kept, family.rollouts, family.questions):
        assert f"`{source.repository}` | `{source.key}` | `{source.revision}`" in text
    assert "| `epochs` | `3.0` | Maximum number of epochs; see" in text
    assert "| `max_steps` | `150` | Optimizer steps" in text
    assert "![The curves of GRPO](curves.png)" in text
    assert "| grpo | 4 | 100.0%" in text
    assert "**Promoted**" in text
    assert "exactly one environment, `reasoning_gym chain_sum`" in text
    assert "training had seen 0 of them by text" in text
    assert "By apprentice 0.1.0, commit c0ffee, at 2026-11-21T18:00:00+00:00." in text
    assert "![" not in card(family.store, family.base).text


def test_a_model_that_was_trained_on_a_rung_says_so_and_is_judged_by_the_recipes_own_task(
    tmp_path: Path, chain_sum: EnvironmentSpec
):
    config = chain_sum.settings["config"] | {"max_terms": 7}
    harder = chain_sum.model_copy(update={"settings": chain_sum.settings | {"config": config}})
    family = other(tmp_path, chain_sum, level=harder)
    for model in (family.grpo, family.release):
        how = card(family.store, model).text.split("### GRPO")[1].split("| setting |")[0]
        assert f"`{family.trained_on.repository}` at tag `{family.trained_on.key}`" in how
        assert '"max_terms": 7' in how
    found = card(family.store, family.release)
    eval_result = found.data.eval_results[0]
    assert eval_result.dataset_revision == family.questions.key
    assert eval_result.dataset_args["environment"]["settings"] == chain_sum.settings
    assert f"those used for `evaluate` in `{family.questions.repository}` at tag `{family.questions.key}`" in found.text
    assert "30 + 40 + 50 =" in card(family.store, family.grpo).text.split("## Use it")[1]


def test_a_model_that_was_trained_on_the_recipes_own_task_names_no_other_settings(family: Family):
    how = card(family.store, family.release).text.split("### GRPO")[1].split("| setting |")[0]
    assert "max_terms" not in how


def test_a_student_of_the_hub_is_the_base_model_with_its_revision(tmp_path: Path, chain_sum: EnvironmentSpec):
    family = other(tmp_path, chain_sum, began=QWEN)
    for model in (family.sft, family.grpo, family.release):
        found = card(family.store, model)
        assert (found.data.base_model, found.data.base_model_relation) == ("Qwen/Qwen3-1.7B", "finetune")
        assert "`Qwen/Qwen3-1.7B` of the Hub, at its revision `c0ffee`" in found.text
    base_card = card(family.store, family.base)
    assert base_card.data.base_model == "Qwen/Qwen3-1.7B"
    assert 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-1.7B", revision="c0ffee")' in base_card.text


def test_a_student_from_a_folder_is_not_named_by_its_path(tmp_path: Path, chain_sum: EnvironmentSpec):
    began = StudentSpec(model=str(tmp_path), revision="main")
    family = other(tmp_path, chain_sum, began=began)
    assert card(family.store, family.release).data.base_model == "local/toy-base"
    base_card = card(family.store, family.base)
    assert "its weights were not published" in base_card.text
    assert str(tmp_path) not in str(base_card)


@pytest.mark.parametrize(("began", "most"), [(BUILT, 64), (THINKER, 64 + 96)])
def test_what_a_card_shows_of_a_turns_length_has_room_for_the_thought(
    tmp_path: Path, chain_sum: EnvironmentSpec, began: StudentSpec, most: int
):
    family = other(tmp_path, chain_sum, began=began)
    for model in (family.base, family.sft, family.release):
        text = card(family.store, model).text
        assert f"max_new_tokens={most}," in text
        assert ("enable_thinking=False" in text) is (began is BUILT), "a student that thinks has its own switch"
    assert f"greedy, at most {most} tokens a turn" in card(family.store, family.release).text
    assert f"greedy, at most {most} tokens a turn" in card(family.store, family.evaluations["grpo"]).text


@pytest.mark.parametrize(
    ("serves_student", "protocol", "most"),
    [(True, "parity", 64 + 96), (True, "tutorial", 64), (False, "parity", 500)],
)
def test_the_card_of_an_endpoints_evaluation_has_the_tokens_that_the_endpoint_was_asked_for(
    family: Family, serves_student: bool, protocol: Any, most: int
):
    there = {"model": "toy", "base_url": "http://10.0.0.7:8000/v1", "max_tokens": 500}
    endpoint = EndpointSpec(**there, serves_student=serves_student).teaching(THINKER.thinking)
    settings = {"spec": EvaluateSpec(protocol=protocol), "endpoint": endpoint, "as_of": "2026-11-21"}
    settings |= {"environment": family.task}
    assert f"at most {most} tokens a turn" in evaluation_card(family, settings, {})


@pytest.mark.parametrize(("share", "most"), [(None, 64 + 96), (0.25, 64 + 24), (0.0, 64)])
def test_the_card_of_an_evaluation_with_a_part_of_the_thoughts_budget_has_that_part(
    tmp_path: Path, chain_sum: EnvironmentSpec, share: float | None, most: int
):
    family = other(tmp_path, chain_sum, began=THINKER)
    settings = {"spec": EvaluateSpec(thought_budget=share), "environment": family.task, "seed": 0}
    assert f"at most {most} tokens a turn" in evaluation_card(family, settings, {"checkpoint": family.grpo})


def evaluation_card(family: Family, settings: dict[str, Any], inputs: dict[str, Any]) -> str:
    """The card of an evaluation with these settings."""
    counts = family.evaluations["grpo"].model_dump(exclude=set(Artifact.model_fields))
    files = {"episodes.jsonl": (family.store.fetch(family.evaluations["grpo"]) / "episodes.jsonl").read_text()}
    inputs = inputs | {"questions": family.questions}
    return card(family.store, family.make(Evaluation, "evaluated", files, counts, settings, inputs)).text


def test_rollouts_tell_their_teacher_seeds_rates_and_cost(tmp_path: Path, chain_sum: EnvironmentSpec):
    teacher = TeacherSpec(model="gpt-5-mini", temperature=0.5, max_tokens=77)
    family = other(tmp_path, chain_sum, teacher=teacher)
    text = card(family.store, family.rollouts).text
    assert "The teacher: `gpt-5-mini at api.openai.com`." in text
    assert "Temperature 0.5; at most 77 tokens" in text
    assert "seeds: 0 to 2 (3)" in text
    assert "| failed episodes | 1 of 3 (33.3%) |" in text
    assert "| failed at the environment | 1 of 3 (33.3%) |" in text
    assert "| cost in USD (0 where no prices were stated) | 0.25 |" in text
    kept = card(family.store, family.kept).text
    assert "| kept | 1 of 3 (33.3%) |" in kept
    assert "| dropped: wrong answer | 1 of 3 (33.3%) |" in kept
    assert "0.2500 USD" in kept
    assert "The terms of the teacher's maker may bind" in kept


def test_a_scripted_teacher_is_called_one_with_its_error_rate(family: Family):
    text = card(family.store, family.kept).text
    assert "The teacher: `scripted policy, error rate 0.1: not a model`." in text
    assert "errs by design on 10.0% of the questions" in text
    assert "Their teacher: `scripted policy, error rate 0.1: not a model`." in card(family.store, family.sft).text


def test_a_private_endpoint_is_not_named_on_a_card(tmp_path: Path, chain_sum: EnvironmentSpec):
    teacher = TeacherSpec(model="own", base_url="http://10.0.0.7:8000/v1")
    family = other(tmp_path, chain_sum, teacher=teacher)
    text = card(family.store, family.rollouts).text
    assert "The teacher: `own at a private endpoint`." in text
    assert "10.0.0.7" not in text


def test_an_ancestor_that_is_gone_costs_a_line_and_not_the_card(family: Family):
    counts = dict(family.grpo.model_dump(exclude=set(Artifact.model_fields)))
    gone = family.sft.model_copy(update={"revision": "a" * 40, "key": "k" * 20})
    inputs = {"checkpoint": gone, "questions": family.questions}
    folder = family.folder / "grpo"
    text = card(family.store, family.make(GrpoCheckpoint, "grpo", folder, counts, {}, inputs)).text
    assert f"The record of `local/toy-sft` at tag `{'k' * 20}` (revision `{'a' * 40}`) is gone" in text
    assert "ones of which no record is left" in text
    rollouts = family.rollouts.model_copy(update={"revision": "b" * 40})
    kept = {"episodes": 3, "kept": 1, "dropped": {}}
    inputs = {"rollouts": rollouts}
    text = card(family.store, family.make(KeptRollouts, "toy", {"kept.jsonl": "{}\n"}, kept, {}, inputs)).text
    assert "an environment that no record of it names any more" in text
    assert "is gone, so nothing more is said of it." in text


def test_an_artifact_without_settings_and_provenance_has_a_card(tmp_path: Path):
    from apprentice.tasks.artifacts.provenance import UNKNOWN
    from apprentice.tasks.cards.card import write_card

    counts = dict(collect=1, grpo=2, evaluate=3, dropped_from_grpo=0)
    store = LocalStore(tmp_path / "store", "toy")
    write_card(tmp_path, Questions, "k", store, counts, {"stage": "toy"}, UNKNOWN)
    assert DatasetCard.load(tmp_path / "README.md").data.to_dict()["license"] == "unknown"


def test_a_recipe_s_licence_stands_on_the_card_and_in_no_revision(family: Family, tmp_path: Path):
    recipe = {"name": "toy", "environment": {"name": "reasoning_gym", "settings": {"dataset": "chain_sum"}}}
    recipe |= {"windows": {name: {"size": 1} for name in ("collect", "grpo", "evaluate")}}
    recipe |= {"teacher": {}, "student": {"build": {}}, "store": {"path": str(tmp_path / "s"), "license": "mit"}}
    assert open_store(Recipe.model_validate(recipe)).license == "mit"
    recipe["store"]["hub"] = {"namespace": "team"}
    assert open_store(Recipe.model_validate(recipe)).license == "mit"
    assert StoreSpec().license == LocalStore(tmp_path, "toy").license == "unknown"
    assert "`apache-2.0`" in card(family.store, family.release).text
    (tmp_path / "again").mkdir()
    unstated = other(tmp_path / "again", family.environment)
    assert [each.revision for each in unstated.all()] == [each.revision for each in family.all()]


def test_every_fact_that_a_template_names_exists(family: Family):
    """Jinja renders a name that does not exist as nothing."""
    for artifact in family.all():
        is_model = type(artifact).repo_type == "model"
        out = family.store.fetch(artifact)
        made = Node(family.store, parent(artifact), read_record(out), {})
        facts = ModelFacts(made, out) if is_model else DatasetFacts(made, out)
        templates = [TEMPLATES / name for name in ("card.md.j2", "model.md.j2" if is_model else "dataset.md.j2")]
        for template in templates:
            named = set(re.findall(r"\bcard\.(?!md\b)(\w+)", template.read_text()))
            assert named
            assert {name for name in named if not hasattr(facts, name)} == set(), template.name


def test_marks_of_markdown_yaml_and_jinja_in_the_data_do_not_break_a_card(tmp_path: Path, chain_sum: EnvironmentSpec):
    odd = "a | b `c` ```\n```\n---\n# d | e {{ 6 * 7 }} {% if %}\n"
    (tmp_path / "odd").mkdir()
    (tmp_path / "plain").mkdir()
    plain = other(tmp_path / "plain", chain_sum)
    family = other(tmp_path / "odd", chain_sum.model_copy(update={"revision": odd}), teacher=TeacherSpec(model=odd))
    for one, the_other in zip(family.all(), plain.all(), strict=True):
        assert outline(card(family.store, one).text) == outline(card(plain.store, the_other).text)
    [result, *_] = card(family.store, family.release).data.eval_results
    assert result.dataset_args["environment"]["revision"] == odd


def outline(text: str) -> list[tuple[str, int]]:
    """The headings, and how many cells each table has."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    headings = [(tokens[place + 1].content, 0) for place, token in enumerate(tokens) if token.type == "heading_open"]
    return [*headings, ("cells", sum(token.type in ("th_open", "td_open") for token in tokens))]


def test_no_card_holds_a_path_or_an_address_of_the_machines(tmp_path: Path, chain_sum: EnvironmentSpec):
    teacher = TeacherSpec(base_url="http://10.0.0.7:8000/v1", model="/home/me/weights")
    family = other(tmp_path, chain_sum, teacher=teacher)
    for artifact in family.all():
        text = str(card(family.store, artifact))
        assert not re.search(r"http://(?!127\.0\.0\.1:8000/)|10\.0\.0\.7|/home/me|machine-of-mine", text)
        assert str(tmp_path) not in text
    assert '"base_url": "(not shown)"' in card(family.store, family.rollouts).text


def test_rows_of_several_players_and_chosen_seeds_are_told(family: Family):
    row = (family.store.fetch(family.kept) / "kept.jsonl").read_text()
    files = {"kept.jsonl": row.rstrip("}\n") + ',"player":"the student (champion)"}\n', "samples.md": "one\n"}
    counts = {"episodes": 1, "kept": 1, "dropped": {}}
    inputs = {"rollouts": family.rollouts, "questions": family.questions}
    mixed = card(family.store, family.make(KeptRollouts, "mix_rollouts", files, counts, {}, inputs)).text
    assert "by several players: 1 by the student (champion)." in mixed
    assert "| `player` | Who played it" in mixed
    assert "| `player` |" not in card(family.store, family.kept).text
    settings = {"teacher": TeacherSpec(scripted_error_rate=0.1), "environment": family.task, "spec": CollectSpec()}
    settings["window"] = Seeds(chosen=(3, 5, 9))
    counts = family.rollouts.model_dump(exclude=set(Artifact.model_fields))
    shard = family.make(RolloutShard, "collect_shard", {"rollouts.jsonl": row}, counts, settings, {})
    assert "3 chosen ones from 3 to 9" in card(family.store, shard).text
