"""What GRPO's stage hands to TRL: the prompt of an evaluation, the questions in their order, the recipe's settings."""

import json
from typing import Any, NamedTuple

import pytest

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.rendering import prompt_ids
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.files.question_lists import read_learned, read_questions
from apprentice.tasks.grpo import grpo
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.trl_arguments import field_of
from tests.conftest import TASKS
from tests.tasks.engine.test_processes import Made
from tests.tasks.evaluations import published
from tests.tasks.rollouts.test_rollout_modes import says

SPEC = GrpoSpec(
    batch_size=4,
    gradient_accumulation=3,
    num_generations=4,
    learning_rate=3e-4,
    scheduler="cosine",
    warmup_steps=1,
    adam_epsilon=1e-7,
    adam_beta2=0.9,
    max_steps=3,
    max_grad_norm=0.5,
    beta=0.04,
    temperature=0.7,
    max_completion_length=96,
    reward_weights={"environment_reward": 0.5},
    logging_steps=1,
    checkpoint_steps=2,
)
"""No value is the default of TRL."""
EVALUATED = range(104, 108)
"""Seeds of GRPO's window whose questions the evaluation asks: as if they were repeated there."""
NOT_ONE_VALUE = ("gradient_checkpointing", "accelerate_config", "liger", "bf16", "generation", "held_out")


class Fed(NamedTuple):
    trainer: Any
    steps: list[list[dict[str, Any]]]
    """The rows of each step."""
    prompts: list[list[int]]
    """The token ids that the model was first given in each rollout."""
    context: StageContext


@pytest.fixture(scope="module")
def made(server: EnvironmentServer, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    servers = StandingServers({"reasoning_gym": server}, None)
    made = Made(RunContext(LocalStore(folder / "artifacts", "toy"), servers, report_to=[]), TASKS["chain_sum"], folder)
    rows = read_rows(made.work.store.fetch(made.questions) / "questions.jsonl")
    lines = [json.dumps(row | {"used": row["used"] and row["seed"] not in EVALUATED}) + "\n" for row in rows]
    counts = dict(collect=24, grpo=20, evaluate=4, dropped_from_grpo=4)
    made.questions = published(made.work.store, Questions, "x" * 20, {"questions.jsonl": "".join(lines)}, counts)
    return made


@pytest.fixture(scope="module", params=list(ROLLOUT_MODES))
def fed(made: Made, request: pytest.FixtureRequest) -> Fed:
    """Runs the stage with a trainer that notes what it is given; one rollout of four is right."""
    trainers, steps, prompts = [], [], []
    real = ROLLOUT_MODES[request.param]

    def noting(instance: Any, rollouts: Any) -> tuple[type, dict[str, Any]]:
        trainer_class, how = real(instance, rollouts)

        class Noting(trainer_class):
            def _generate_and_score_completions(self, inputs: Any) -> Any:
                trainers.append(self)
                steps.append([dict(row) for row in inputs])
                return super()._generate_and_score_completions(inputs)

            def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
                prompts.extend(prompt_ids)
                texts = [says(self._tokenizer.decode(ids)) for ids in prompt_ids]
                texts = [text.replace('"}}', f'{place % 4 or ""}"}}}}') for place, text in enumerate(texts)]
                return [[*self._tokenizer.encode(text), self._tokenizer.eos_token_id] for text in texts], None

        return Noting, how

    context = made.context(request.param)
    spec = SPEC.model_copy(update={"rollouts": request.param})
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(ROLLOUT_MODES, request.param, noting)
        grpo.body(context, spec, made.base, TASKS["chain_sum"], made.questions, 0)
    return Fed(trainers[0], steps, prompts, context)


def seed_of(row: dict[str, Any]) -> int:
    return row["seed"] if "seed" in row else row["prompt"][-1]["seed"]


def used(made: Made) -> dict[int, str]:
    rows = read_questions(made.work.store.fetch(made.questions), "grpo")
    return {row["seed"]: row["question"] for row in rows if row["used"]}


def test_without_a_question_left_there_is_nothing_to_train_on(made: Made):
    rows = read_rows(made.work.store.fetch(made.questions) / "questions.jsonl")
    lines = [json.dumps(row | {"used": row["used"] and row["purpose"] != "grpo"}) + "\n" for row in rows]
    counts = dict(collect=24, grpo=0, evaluate=4, dropped_from_grpo=24)
    none = published(made.work.store, Questions, "y" * 20, {"questions.jsonl": "".join(lines)}, counts)
    with pytest.raises(Stop, match=r"No question of windows\.grpo is left"):
        grpo.body(made.context("none"), SPEC, made.base, TASKS["chain_sum"], none, 0)


def test_every_rollout_begins_with_the_prompt_of_an_evaluation(made: Made, fed: Fed):
    tokenizer = load_tokenizer(made.work.store.fetch(made.base))
    instance, questions = TASKS["chain_sum"].make(), used(made)
    seeds = [seed_of(row) for rows in fed.steps for row in rows]
    tools = instance.schemas
    assert fed.prompts == [prompt_ids(tokenizer, prompt(instance, questions[seed]), tools) for seed in seeds]


def test_the_groups_come_in_the_order_of_the_rows_and_an_epoch_asks_each_question_once(made: Made, fed: Fed):
    seeds = [seed_of(row) for rows in fed.steps for row in rows]
    groups = [seeds[start : start + 4] for start in range(0, len(seeds), 4)]
    assert [len(rows) for rows in fed.steps] == [12] * 3
    assert all(len(set(group)) == 1 for group in groups)
    rows = [seed_of(row) for row in fed.trainer.train_dataset]
    assert [group[0] for group in groups] == rows[:9]
    assert sorted(rows) == sorted(used(made)), "an epoch, without what the evaluation asks"
    assert len(rows) == 20
    assert rows != sorted(rows), "they were shuffled"


def test_every_setting_reaches_the_trainer(fed: Fed):
    args, compared = fed.trainer.args, []
    for name in vars(args):
        section, _, field = (field_of(GrpoSpec, name) or "").partition(".")
        field = field.partition(".")[0]
        if section != "grpo" or field in NOT_ONE_VALUE or name in ("reward_weights", "num_train_epochs"):
            continue
        if name in ("steps_per_generation", "generation_batch_size"):  # TRL computes them
            continue
        assert getattr(args, name) == getattr(SPEC, field), name
        compared.append(name)
    assert len(compared) == 15
    assert args.seed == 0


def test_the_model_samples_at_the_recipes_temperature_and_beta_has_its_reference(fed: Fed):
    assert fed.trainer.temperature == fed.trainer.generation_config.temperature == 0.7
    assert fed.trainer.ref_model is not None


def test_the_reward_is_weighted_as_the_recipe_says(fed: Fed):
    log = json.loads((fed.context.out / "log.json").read_text())
    assert [entry["step"] for entry in log] == [1, 2, 3]
    for entry in log:
        assert 0.0 < entry["reward"] == pytest.approx(0.5 * entry["rewards/environment_reward/mean"])


def test_what_was_trained_on_is_what_was_asked(made: Made, fed: Fed):
    seeds = {seed_of(row) for rows in fed.steps for row in rows}
    learned = {row["seed"]: row["question"] for row in read_learned(fed.context.out)}
    assert learned == {seed: used(made)[seed] for seed in seeds}


def test_the_order_is_that_of_the_seed(made: Made, fed: Fed):
    from apprentice.tasks.grpo import _rows

    questions = [{"seed": seed, "question": text} for seed, text in used(made).items()]
    orders = [[row["seed"] for row in _rows(TASKS["chain_sum"], questions, SPEC, seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
