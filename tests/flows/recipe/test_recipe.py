"""A recipe is checked before anything runs; a mistake is named with its path and what was probably meant."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.reporting.errors import Stop
from tests.recipes_page import page

RECIPES = Path(__file__).parents[3] / "deployments" / "recipes"
PAGES = ["README.md", *sorted(f"docs/{each.name}" for each in (RECIPES.parent.parent / "docs").glob("*.md"))]
BLOCKS = [
    (page, block)
    for page in PAGES
    for block in range(1, 1 + (RECIPES.parent.parent / page).read_text().count("```yaml\n"))
]
TOY = RECIPES / "toy.yaml"
QWEN3 = sorted(RECIPES.glob("chain-sum-qwen3-*.yaml"))


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_checked_in_recipe_is_valid_and_named_by_its_file(path: Path):
    of_the_hub = "model" in yaml.safe_load(path.read_text())["student"]
    assert load_recipe(path, ["student.revision=c0ffee"] if of_the_hub else []).name == path.stem


@pytest.mark.parametrize("path", QWEN3, ids=lambda path: path.stem)
def test_a_recipe_for_a_model_of_the_hub_leaves_the_commit_to_who_runs_it(path: Path):
    with pytest.raises(Stop, match=r"name the revision of Qwen/Qwen3-(1\.7|0\.6)B, preferably a commit"):
        load_recipe(path, [])


@pytest.mark.parametrize("path", QWEN3, ids=lambda path: path.stem)
def test_the_recipes_for_qwen3_train_as_the_tutorials_do(path: Path):
    recipe: Any = load_recipe(path, ["student.revision=c0ffee"])
    sft, grpo = recipe.sft, recipe.grpo
    assert (recipe.windows.collect.size, recipe.teacher.max_tokens, recipe.evaluate.max_new_tokens) == (300, 1024, 64)
    assert (sft.epochs, sft.batch_size, sft.gradient_accumulation, sft.scheduler) == (3, 4, 2, "cosine")
    assert (sft.learning_rate, sft.warmup_steps, sft.logging_steps) == (2e-5, 10, 5)
    assert (grpo.max_steps, grpo.batch_size, grpo.gradient_accumulation, grpo.num_generations) == (150, 1, 4, 2)
    assert (grpo.learning_rate, grpo.warmup_steps, grpo.scheduler, grpo.max_grad_norm) == (1e-6, 10, "linear", 1.0)
    assert (grpo.max_completion_length, grpo.logging_steps, grpo.beta, grpo.temperature) == (256, 10, 0.0, 1.0)
    assert all(each.gradient_checkpointing and each.bf16 and each.lora is None for each in (sft, grpo))


def test_the_recipe_that_a_run_leaves_behind_can_be_run_again(tmp_path: Path):
    recipe = load_recipe(TOY, ["seed=3"])
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    assert load_recipe(tmp_path / "recipe.yaml", []) == recipe


def test_overrides_reach_nested_fields():
    recipe: Any = load_recipe(TOY, ["grpo.max_steps=50", "seed=2", "store.path=elsewhere"])
    assert (recipe.grpo.max_steps, recipe.seed, recipe.store.path) == (50, 2, Path("elsewhere"))


@pytest.mark.parametrize("seed", [0, 1, 2, 99])
def test_windows_cannot_overlap_between_purposes_or_seeds_of_training(seed: int):
    current_location = load_recipe(TOY, [f"seed={seed}"]).seed_windows()
    other = load_recipe(TOY, [f"seed={(seed + 1) % 100}"]).seed_windows()
    apart = [window for _, window in current_location] + [other.collect, other.grpo]
    seeds = [number for window in apart for number in window.seeds()]
    assert len(seeds) == len(set(seeds))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("grpo.max_step=5", "grpo.max_step: unknown field; did you mean max_steps?"),
        ("gropo={}", "gropo: unknown field; did you mean grpo?"),
        ("student.build.hiden_size=3", "student.build.hiden_size: unknown field; did you mean hidden_size?"),
        ("grpo.max_steps=many", "grpo.max_steps: Input should be a valid integer"),
        (
            "environment.name=reasoning_gim",
            "unknown environment 'reasoning_gim'; did you mean 'reasoning_gym'?",
        ),
        (
            "environment.settings.dataset=chain_sun",
            "unknown Reasoning Gym dataset 'chain_sun'; did you mean 'chain_sum'?",
        ),
        ("environment.settings={dataset: rubiks_cube}", "rubiks_cube names no answer of its own"),
        ("environment.settings.size=3", "settings"),
        ("windows.grpo.start=10", "overlap"),
        ("grpo.num_generations=3", "does not divide"),
        ("student.model=Qwen/Qwen3-0.6B", "name either `model`"),
        ("student={model: Qwen/Qwen3-0.6B}", "name the revision of Qwen/Qwen3-0.6B"),
        ("environment.version='0'", "version '0' of reasoning_gym"),
        ("grpo.max_steps", "is not of the form path=value"),
    ],
)
def test_a_mistake_is_named_with_its_path(override: str, words: str):
    with pytest.raises(Stop) as stop:
        load_recipe(TOY, [override])
    assert words in str(stop.value)


NAMES_A_MODEL = ["teacher.model=big", "teacher.base_url=http://127.0.0.1:9/v1"]


def test_a_model_that_is_named_on_the_command_line_plays_in_place_of_the_recipes_script():
    teacher: Any = load_recipe(TOY, NAMES_A_MODEL).teacher
    assert (teacher.scripted_error_rate, teacher.model, teacher.base_url) == (None, "big", "http://127.0.0.1:9/v1")
    assert teacher.called == "big at 127.0.0.1"
    default: Any = load_recipe(TOY, NAMES_A_MODEL[1:]).teacher
    assert default.called == "gpt-5-mini at 127.0.0.1"


def test_a_script_that_is_named_on_the_command_line_plays_in_place_of_the_recipes_model():
    recipe = load_recipe(RECIPES / "echo.yaml", ["student.revision=c0ffee", "teacher.scripted_error_rate=0.2"])
    teacher: Any = recipe.teacher
    assert (teacher.scripted_error_rate, teacher.model, teacher.base_url) == (0.2, "", None)
    assert teacher.called == "scripted policy, error rate 0.2: not a model"


@pytest.mark.parametrize("named", NAMES_A_MODEL)
def test_a_script_and_a_model_exclude_each_other(tmp_path: Path, named: str):
    field, _, value = named.partition(".")[2].partition("=")
    both = yaml.safe_load(TOY.read_text())
    both["teacher"][field] = value
    (tmp_path / "both.yaml").write_text(yaml.safe_dump(both))
    for path, overrides in ((tmp_path / "both.yaml", []), (TOY, [named, "teacher.scripted_error_rate=0.1"])):
        with pytest.raises(Stop, match=rf"only one of them can play; remove scripted_error_rate.*or {field} for"):
            load_recipe(path, overrides)


@pytest.mark.parametrize("dataset", ["gcd", "sudoku", "countdown"])
def test_a_copied_recipe_with_another_dataset_has_a_teacher(dataset: str):
    load_recipe(TOY, [f"environment.settings={{dataset: {dataset}}}", "guards=[]"])


def test_a_dataset_without_an_answer_is_refused_with_advice_that_works():
    dataset = "environment.settings={dataset: rubiks_cube}"
    with pytest.raises(Stop, match=r"take teacher\.scripted_error_rate out and name a model: teacher\.model"):
        load_recipe(TOY, [dataset])
    teacher: Any = load_recipe(TOY, [dataset, "teacher.model=big"]).teacher
    assert teacher.model == "big"


def test_a_missing_recipe_names_those_that_are_there():
    with pytest.raises(Stop, match=r"Did you mean toy\?.* wordle-laptop"):
        load_recipe(RECIPES / "tou.yaml", [])


@pytest.mark.parametrize(
    ("text", "words"),
    [("a: [", "line 1: while parsing"), ("- 1", "is not a recipe"), ("", "is not a recipe")],
)
def test_a_malformed_recipe_is_refused(tmp_path: Path, text: str, words: str):
    (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(Stop, match=words):
        load_recipe(tmp_path / "wrong.yaml", [])


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_every_block_of_yaml_in_the_documentation_fits_a_recipe(tmp_path: Path, page: str, block: int):
    load_recipe(as_documented(tmp_path, page, block), [])


def test_what_the_documentation_says_means_what_it_says(tmp_path: Path):
    collecting: Any = load_recipe(as_documented(tmp_path, "docs/collecting.md", 1), [])
    assert (collecting.teacher.budget_usd, collecting.server.space, collecting.collect.shards) == (
        *(5, "owner/reasoning-gym", 4),
    )
    gated = load_recipe(as_documented(tmp_path, "docs/evaluation.md", 1), [])
    assert (gated.guards[0].may_fall, gated.gate.margin, gated.evaluate.samples) == (0.05, 0.02, 4)
    trained: Any = load_recipe(as_documented(tmp_path, "docs/training.md", 1), [])
    assert (len(trained.level_environments()), trained.grpo.signals.saturated, trained.grpo.held_out.every) == (
        3,
        "stop",
        10,
    )
    shop: Any = load_recipe(as_documented(tmp_path, "docs/environments.md", 2), [])
    assert (shop.environment.name, shop.environment.settings["reward"]) == ("openenv", "sum")
    packaged: Any = load_recipe(as_documented(tmp_path, "docs/environments.md", 3), [])
    assert (packaged.environment.name, packaged.windows.grpo.start) == ("verifiers", 500)
    mixed: Any = load_recipe(as_documented(tmp_path, "docs/environments.md", 4), [])
    assert [part.name for part in mixed.environment.mixed.values()] == ["catch", "wordle"]
    assert mixed.server.parts["wordle"].url == "https://owner-wordle.hf.space"
    assert mixed.grpo.reward_weights == {"words.greens": 0.1}


def test_the_page_of_recipes_is_what_the_settings_say():
    written = (RECIPES.parent.parent / "docs" / "recipes.md").read_text()
    assert written == page(), "the settings have changed: make docs"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "grpo.reward_weights={green: 1}",
            "multi ball say spell has no reward stream 'green'; known: ball, say, spell",
        ),
        ("server.url=http://127.0.0.1:9", "server: a mixture has no server of its own; set those of server.parts"),
        (
            "server.parts={wordle: {}}",
            "server.parts: 'wordle' is not an environment of multi ball say spell; known: catch",
        ),
        ("environment.settings.parts.say.name=ecko", "say: unknown environment 'ecko'; did you mean 'echo'?"),
    ],
)
def test_what_a_mixture_does_not_have_is_refused_with_what_it_has(override: str, words: str):
    with pytest.raises(Stop) as stop:
        load_recipe(RECIPES / "multi-laptop.yaml", [override])
    assert words in str(stop.value)


@pytest.mark.parametrize("regression_server", ["{image: nobody/echo:1}", "{url: 'http://127.0.0.1:9'}"])
def test_who_plays_in_one_environment_plays_on_one_server(regression_server: str):
    regression = f"guards=[{{name: a, environment: {{name: echo}}, server: {regression_server}}}]"
    with pytest.raises(Stop, match=r"server\.parts\.echo and guards\.a\.server name two servers for echo"):
        load_recipe(RECIPES / "multi-laptop.yaml", [regression])


def test_rungs_of_a_ladder_may_mix_other_environments():
    levels = [{"parts": {"say": {"name": "echo"}}}, {"parts": {"ball": {"name": "catch"}}}]
    loaded = load_recipe(RECIPES / "multi-laptop.yaml", [f"grpo.auto_difficulty={json.dumps(levels)}"])
    assert [environment.version for environment in loaded.level_environments()] == ["1, say echo 1", "1, ball catch 1"]


@pytest.mark.parametrize("override", ["grpo.reward_weights={environment_reward: .nan}", "name=[1"])
def test_a_weight_that_is_no_number_and_a_value_that_is_no_yaml_are_refused(override: str):
    with pytest.raises(Stop, match=r"finite number|expected ',' or '\]'"):
        load_recipe(TOY, [override])


def test_parts_are_a_mixtures_only():
    with pytest.raises(Stop, match=r"'echo' is not an environment of reasoning_gym .*; this is not a mixture"):
        load_recipe(TOY, ["server.parts={echo: {}}"])


def as_documented(folder: Path, page: str, block: int) -> Path:
    """The laptop's recipe with what a page's block of YAML says, counted from 1."""
    shown = (RECIPES.parent.parent / page).read_text().split("```yaml\n")[block].split("```")[0]
    laptop = yaml.safe_load((RECIPES / "laptop.yaml").read_text())
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(laptop | yaml.safe_load(shown)))
    return recipe


def test_a_budget_without_prices_is_refused():
    with pytest.raises(Stop, match="budget_usd needs prices"):
        load_recipe(TOY, ["teacher.budget_usd=5"])


def test_another_seed_trains_on_other_questions_and_is_examined_on_the_same():
    one, other = load_recipe(TOY, []).seed_windows(), load_recipe(TOY, ["seed=1"]).seed_windows()
    assert one.evaluate == other.evaluate
    assert one.collect.start != other.collect.start
    assert one.grpo.start != other.grpo.start


def test_a_ladder_is_written_down_with_the_recipe_and_makes_nothing_anew_by_itself():
    levels = [{"dataset": "spell_backward", "config": {"max_word_len": longest}} for longest in (4, 9)]
    plain: Any = load_recipe(TOY, ["environment.revision=abc"])
    with_levels: Any = load_recipe(TOY, ["environment.revision=abc", f"grpo.auto_difficulty={json.dumps(levels)}"])
    assert [(level.settings, level.revision) for level in with_levels.level_environments()] == [
        (level, "abc") for level in levels
    ]
    assert plain.level_environments() == []
    assert with_levels.grpo.in_key() == plain.grpo.in_key()
    assert with_levels.for_record()["grpo"]["auto_difficulty"] == levels
    assert "rollouts" not in with_levels.for_record()["grpo"]
    assert Recipe.model_validate(with_levels.as_parameters()) == with_levels


def test_for_a_curriculum_the_rungs_are_one_mixture_on_the_recipes_server():
    levels = [{"dataset": "spell_backward", "config": {"max_word_len": longest}} for longest in range(3, 13)]
    given = [f"grpo.auto_difficulty={json.dumps(levels)}", "grpo.curriculum=true", "environment.revision=abc"]
    recipe = load_recipe(TOY, [*given, "probe.questions=0", "server.url=http://127.0.0.1:1"])
    [mixture] = recipe.level_environments()
    assert [part.settings for part in mixture.mixed.values()] == levels, "in the order of the ladder, also beyond nine"
    assert (mixture.name, mixture.revision) == ("multi", "abc")
    assert recipe.server_of("multi") == recipe.server
    assert recipe.mixed_in("multi") == ["reasoning_gym"]
    parts = {"a": {"name": "echo"}, "b": {"name": "catch"}}
    with pytest.raises(Stop, match="its kinds are the mixture's environments; take auto_difficulty out"):
        load_recipe(
            TOY,
            [
                *(
                    "environment.name=multi",
                    f"environment.settings={json.dumps({'parts': parts})}",
                    "teacher={model: x}",
                ),
                *("grpo.curriculum=true", f"grpo.auto_difficulty={json.dumps([{'parts': parts}])}"),
            ],
        )


def test_a_regression_evaluations_seeds_are_nobody_elses():
    recipe = load_recipe(TOY, [])
    regression_seeds = set(recipe.regression_window(0).seeds())
    assert not any(regression_seeds & set(window.seeds()) for _, window in recipe.seed_windows())


def test_the_tutorials_protocol_decides_nothing(tmp_path: Path):
    with pytest.raises(Stop, match=r"a run cannot use it.*apprentice evaluate --protocol"):
        load_recipe(TOY, ["evaluate.protocol=tutorial"])


def test_a_mistake_within_a_regression_evaluation_is_named_with_its_path(tmp_path: Path):
    given = yaml.safe_load(TOY.read_text())
    given["guards"][0]["may_fal"] = 0.1
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(given))
    with pytest.raises(Stop, match=r"guards\.0\.may_fal: unknown field; did you mean may_fall\?"):
        load_recipe(tmp_path / "toy.yaml", [])


def test_two_regression_evaluations_of_one_name_are_refused(tmp_path: Path):
    given = yaml.safe_load(TOY.read_text())
    given["guards"] *= 2
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(given))
    with pytest.raises(Stop, match="guards: two regression evaluations have the same name: longer-words"):
        load_recipe(tmp_path / "toy.yaml", [])


def test_every_field_of_the_form_says_what_it_means():
    """Prefect's interface shows a field's docstring beside it; one that is a section of its own has its class's."""
    schema = Recipe.model_json_schema()
    silent = [
        f"{model}.{field}"
        for model, described in {"Recipe": schema, **schema["$defs"]}.items()
        for field, shown in described.get("properties", {}).items()
        if not shown.get("description") and "$ref" not in str(shown)
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("precision", "pays", "gpu", "bf16"),
    [
        ("fp32", True, True, False),
        ("bf16", False, False, True),
        ("auto", True, False, True),
        ("auto", False, False, False),
        ("auto", False, True, True),
    ],
)
def test_one_field_says_what_all_sections_compute_in(
    precision: str, pays: bool, gpu: bool, bf16: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("apprentice.flows.recipe.recipe.bf16_pays", lambda: pays)
    recipe: Any = load_recipe(TOY, [f"precision={precision}"]).with_precision(gpu)
    assert {recipe.sft.bf16, recipe.grpo.bf16, recipe.evaluate.bf16} == {bf16}
    without: Any = load_recipe(TOY, [f"precision={precision}", "sft=off"]).with_precision(gpu)
    assert (without.sft, without.grpo.bf16) == (None, bf16)


def test_a_section_that_computes_in_bf16_keeps_it_whatever_the_machine():
    recipe: Any = load_recipe(TOY, ["sft.bf16=true"]).with_precision()
    assert (recipe.sft.bf16, recipe.grpo.bf16) == (True, False)


@pytest.mark.parametrize(
    ("name", "hub", "says"),
    [
        ("toy", "team", ""),
        ("a" * 78, "team", ""),  # -rescored-rollouts makes 96 of it
        ("a" * 79, "team", r"maximum length is 96: .*-rescored-rollouts' \(97 characters\)"),
        ("a--b", "team", "Cannot have -- or .. in repo_id"),
        ("a..b", "team", "Cannot have -- or .. in repo_id"),
        ("a-", "team", "Cannot have -- or .. in repo_id: 'team/a--"),
        ("toy", "te--am", "Cannot have -- or .. in repo_id"),
        ("toy", "-team", "cannot start or end with"),
        ("toy", "team.", "cannot start or end with"),
        ("toy", "my team", "must use alphanumeric"),
        ("toy", "https://huggingface.co/team", "must be in the form"),
        ("a--b", None, ""),
        ("a" * 176, None, ""),
        ("a" * 177, None, "has 201 characters, and 200 fit"),
    ],
)
def test_every_repository_that_a_run_makes_has_a_name_that_its_store_takes(name: str, hub: str | None, says: str):
    given = [f"name={name}", *([f"store.hub={{namespace: {json.dumps(hub)}}}"] if hub else [])]
    if not says:
        assert load_recipe(TOY, given).name == name
        return
    with pytest.raises(Stop, match=says):
        load_recipe(TOY, given)
