"""What the model said in training is kept to be read: by either way into TRL, interrupted or not, the same rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.pool import EnvironmentPool
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.files.question_lists import TrainedQuestions
from apprentice.tasks.grpo import held_out_arguments
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.question_rows import held_out_rows, row_of
from apprentice.tasks.rollouts.rewards import EnvironmentReward
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from apprentice.tasks.settings.grpo_settings import HeldOut
from apprentice.tasks.training.tracking.completions import (
    COMPLETIONS,
    as_table,
    last_groups,
    log_completions,
    read_completions,
)
from apprentice.tasks.training.trainer import arguments, train
from apprentice.tasks.training.watcher import watch
from tests.tasks.test_one_prompt import tiny_model
from tests.tasks.toy_training import small
from tests.tokenizers import build_tokenizer

SPEC = small(max_steps=5, said_every=3, held_out=HeldOut(questions=8, every=2))
HELD = range(100, 108)


@pytest.fixture
def kept(chain_sum, server, work: RunContext, tmp_path: Path) -> Callable[..., StageContext]:
    """Trains in a real environment by one of the ways, and holds questions out; interrupted in the step `cut`."""
    from datasets import Dataset
    from transformers import set_seed
    from trl.trainer.grpo_config import GRPOConfig

    def run(way: str, name: str, cut: int = 0) -> StageContext:
        context = StageContext(work, "0" * 20, tmp_path / f"{name}-out", tmp_path / name)
        context.out.mkdir(exist_ok=True)
        context.scratch.mkdir(exist_ok=True)

        class Cut(EnvironmentReward):
            def __call__(self, seed: Any, question: Any, **row: Any) -> list[float | None]:
                if row["trainer_state"].global_step + 1 == cut and "held_out" not in row:
                    raise KeyboardInterrupt
                return super().__call__(seed, question, **row)

        set_seed(0)
        instance = chain_sum.make()
        with EnvironmentPool(chain_sum, server, size=SPEC.sessions()) as pool, LiveRollouts(pool) as rollouts:
            pool.open_all()
            questions = {seed: pool.players[0].ask(seed) for seed in [*range(20), *HELD]}
            tokenizer = build_tokenizer(chain_sum, list(questions.values()))
            trainer_class, how = ROLLOUT_MODES[way](instance, rollouts)
            trainer = trainer_class(
                model=tiny_model(tokenizer),
                processing_class=tokenizer,
                train_dataset=Dataset.from_list([row_of(way, instance, n, questions[n]) for n in range(20)]),
                eval_dataset=held_out_rows(chain_sum, [{"seed": n, "question": questions[n]} for n in HELD], way),
                reward_funcs=Cut(SPEC, TrainedQuestions(context.scratch / "asked.jsonl"), rollouts),
                args=GRPOConfig(
                    **{**arguments(context, SPEC, 0), "report_to": "none"},
                    **held_out_arguments(SPEC),
                    max_steps=SPEC.max_steps,
                    num_generations=SPEC.num_generations,
                    max_completion_length=SPEC.max_completion_length,
                    chat_template_kwargs=TEMPLATE_ARGUMENTS,
                ),
                **how,
            )
            watch(trainer, SPEC.signals)
            said = log_completions(context, trainer, rollouts, SPEC.num_generations, SPEC.said_every)
            train(context, "GRPO steps", trainer, SPEC.max_steps)
            said.publish(context.out)
        return context

    return run


@pytest.mark.parametrize("way", ["environment_factory", pytest.param("rollout_func", marks=pytest.mark.long)])
def test_the_first_the_last_and_every_so_many_logs_leave_a_group_and_none_is_kept_twice(kept, way: str):
    whole = kept(way, "whole")
    rows = read_completions(whole.out)
    assert [row["step"] for row in rows] == [1] * 4 + [3] * 4 + [5] * 4
    for step in (1, 3, 5):
        assert len({(row["seed"], row["question"]) for row in rows if row["step"] == step}) == 1, "a group's question"
    assert all(row["reward"] is not None and {"said", "calls", "replies"} < set(row) for row in rows)
    assert [row["step"] for row in last_groups(rows)] == [3] * 4 + [5] * 4

    with pytest.raises(KeyboardInterrupt):
        kept(way, "again", cut=4)  # after step 3, which is said again from the checkpoint after step 2
    torn = whole.scratch.parent / "again" / COMPLETIONS
    torn.write_text(torn.read_text() + '{"step": 4, "se')
    assert (kept(way, "again").out / COMPLETIONS).read_bytes() == (whole.out / COMPLETIONS).read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("way", ROLLOUT_MODES)
def test_what_is_held_out_is_asked_and_not_learned_from(kept, way: str):
    context = kept(way, "whole")
    trained_questions = dict(TrainedQuestions(context.scratch / "asked.jsonl").items())
    assert trained_questions
    assert not set(trained_questions) & set(HELD)
    assert not {row["seed"] for row in read_completions(context.out)} & set(HELD)


@pytest.mark.long
def test_both_ways_keep_the_same_rows(kept):
    one, other = (read_completions(kept(way, way).out) for way in ROLLOUT_MODES)
    assert one == other


def test_the_table_shows_calls_and_lost_rollouts_and_nothing_in_it_is_markup():
    row = {"step": 3, "seed": 7, "question": "2 | 2?", "said": "`so`", "calls": ['answer({"answer": "4"})']}
    table = as_table([row | {"reward": 1.0}, row | {"said": "", "calls": [], "reward": None}])
    assert '| 3 | `2 \\| 2?` | `` `so` answer({"answer": "4"}) `` | 1 |' in table
    assert "| 3 | `2 \\| 2?` | (nothing) | lost |" in table


def test_a_thought_has_a_column_of_its_own_where_any_rollout_has_one():
    row = {"step": 3, "seed": 7, "question": "2+2?", "said": "", "calls": ["answer(4)"], "reward": 1.0}
    table = as_table([row, row | {"thought": "2 and 2"}])
    assert table.startswith("| step | question | thought | said | reward |")
    assert "| 3 | `2+2?` | (nothing) | `answer(4)` | 1 |" in table
    assert "| 3 | `2+2?` | `2 and 2` | `answer(4)` | 1 |" in table
