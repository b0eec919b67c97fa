"""Both ways into TRL play the same rollouts."""

import re
from typing import Any, NamedTuple

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reasoning_gym.env import Environment
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.files.question_lists import TrainedQuestions
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.question_rows import row_of
from apprentice.tasks.rollouts.rewards import EnvironmentReward
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from apprentice.tasks.rollouts.streams import Stream
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from tests.tasks.test_one_prompt import tiny_model
from tests.tokenizers import build_tokenizer

SEEDS = (3, 3, 4, 4, 5, 5, 6, 6)


class WithHints(Environment):
    """A game of several turns: hints may be asked for before the answer."""

    @property
    def max_turns(self) -> int:
        return 3

    def hint(self) -> str:
        """Get a hint.

        Returns:
            What kind of problem it is.
        """
        return f"Think of {self.settings.dataset}."


class Hinting(EnvironmentSpec):
    def make(self, session: Session | None = None) -> Player:
        return Player(WithHints(Environment.Settings.model_validate(self.settings), session))


class Seen(NamedTuple):
    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    tool_mask: list[list[int]] | None
    rewards: list[float | None]


@pytest.fixture
def hinting(chain_sum: EnvironmentSpec) -> EnvironmentSpec:
    return Hinting(**chain_sum.model_dump())


def says(context: str) -> str:
    """A model that is greedy and odd: what it says depends on what it reads, and on nothing else."""
    question = context[context.rindex("<|im_start|>user\nState the final answer") :]
    heard = context.count("<tool_response>\n")
    seed_like = sum(map(ord, question.partition("<|im_end|>")[0]))
    if '"name": "hint"' in context and heard < 2 and seed_like % 2:
        return '<tool_call>\n{"name": "hint", "arguments": {}}\n</tool_call>'
    expression = re.findall(r"[-+]?\s*\d+", question[question.index(":") : question.index("=")])
    result = sum(int(term.replace(" ", "")) for term in expression) + seed_like % 3 // 2
    return f'<tool_call>\n{{"name": "answer", "arguments": {{"answer": "{result}"}}}}\n</tool_call>'


def rolled_out(way: str, task: EnvironmentSpec, server: EnvironmentServer, folder, longest: int = 256) -> Seen:
    """What a GRPOTrainer would learn from."""
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig

    instance = task.make()
    with EnvironmentPool(task, server, size=len(SEEDS)) as pool, LiveRollouts(pool) as rollouts:
        pool.open_all()
        questions = {seed: pool.players[0].ask(seed) for seed in SEEDS}
        tokenizer = build_tokenizer(task, list(questions.values()))
        trainer_class, given = ROLLOUT_MODES[way](instance, rollouts)
        rewards: list[float | None] = []

        class Reward(EnvironmentReward):
            def _shaped(self, stream: Stream, player: Player) -> float | None:
                rewards.append(super()._shaped(stream, player))
                return rewards[-1]

        class Puppet(trainer_class):
            def _generate_single_turn(self, prompt_ids, *_: Any, **__: Any):
                texts = [says(tokenizer.decode(ids)) for ids in prompt_ids]
                return [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in texts], None

        rows = [row_of(way, instance, seed, questions[seed]) for seed in SEEDS]
        trainer = Puppet(
            model=tiny_model(tokenizer),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            reward_funcs=Reward(GrpoSpec(), TrainedQuestions(folder / f"{way}.jsonl"), rollouts),
            args=GRPOConfig(
                str(folder),
                report_to="none",
                use_cpu=True,
                bf16=False,
                per_device_train_batch_size=len(SEEDS),
                num_generations=2,
                max_completion_length=longest,
                chat_template_kwargs=TEMPLATE_ARGUMENTS,
            ),
            **given,
        )
        out: Any = trainer._generate_and_score_completions([dict(row) for row in trainer.train_dataset])
    given_mask, said = out["prompt_mask"].bool(), out["completion_mask"].bool()
    rollouts_of = range(len(SEEDS))
    return Seen(
        [out["prompt_ids"][n][given_mask[n]].tolist() for n in rollouts_of],
        [out["completion_ids"][n][said[n]].tolist() for n in rollouts_of],
        [out["tool_mask"][n][said[n]].tolist() for n in rollouts_of],
        rewards,
    )


def test_both_ways_give_the_same_ids_masks_and_rewards_where_one_answer_ends_it(chain_sum, server, tmp_path):
    one, other = (rolled_out(way, chain_sum, server, tmp_path) for way in ROLLOUT_MODES)
    assert one == other
    assert 1.0 in one.rewards
    assert all(set(mask) == {1} for mask in one.tool_mask or [[]])


def test_both_ways_give_the_same_ids_masks_and_rewards_over_several_turns(hinting, server, tmp_path):
    one, other = (rolled_out(way, hinting, server, tmp_path) for way in ROLLOUT_MODES)
    assert one == other
    rollouts = {sum(a < b for a, b in zip([0, *mask], mask, strict=False)) for mask in one.tool_mask or []}
    assert rollouts == {1, 3}, "the questions were meant to take one turn and three"
    assert all(mask[-1] == 1 for mask in one.tool_mask or []), "nothing stands at the end that the model did not say"
    assert 1.0 in one.rewards


def test_a_reply_that_would_not_fit_ends_the_episode_without_it(hinting, server, tmp_path):
    one, other = (rolled_out(way, hinting, server, tmp_path, longest=60) for way in ROLLOUT_MODES)
    assert one == other
    assert all(len(ids) <= 60 for ids in one.completion_ids)
    assert all(mask[-1] == 1 for mask in one.tool_mask or [])


def test_the_tools_are_those_of_the_environment(chain_sum, server):
    with EnvironmentPool(chain_sum, server, size=1) as pool, LiveRollouts(pool) as rollouts:
        _, how = ROLLOUT_MODES["environment_factory"](chain_sum.make(), rollouts)
    shown = how["environment_factory"]()
    assert shown.schemas == chain_sum.make().schemas
    assert shown.reset(question="What?", seed=3, prompt=[]) == "What?"
