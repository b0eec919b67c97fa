"""Both ways into TRL play the same rollouts, and play them while the model generates."""

import re
from typing import Any, NamedTuple

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reasoning_gym.env import Environment
from apprentice.envs.wire import waiting
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.tasks.episodes.record import TrainedQuestions
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.rollouts import rollouts
from apprentice.tasks.rollouts import rollouts as rollouts_module
from apprentice.tasks.rollouts.rewards import EnvironmentReward
from apprentice.tasks.rollouts.rollouts import ROLLOUT_MODES, LiveRollouts, row_of
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


def test_a_group_is_rendered_once_and_its_equal_completions_are_parsed_once(chain_sum, server, tmp_path, monkeypatch):
    from trl import GRPOTrainer, chat_template_utils
    from trl.trainer import grpo_trainer

    parsed, rendered = [], []
    parse, render = chat_template_utils.parse_response, GRPOTrainer._tokenize_prompts

    def parse_response(tokenizer: Any, ids: list[int], **given: Any) -> Any:
        parsed.append(ids)
        return parse(tokenizer, ids, **given)

    def tokenize_prompts(trainer: Any, prompts: list[Any]) -> Any:
        rendered.append(len(prompts))
        return render(trainer, prompts)

    monkeypatch.setattr(chat_template_utils, "parse_response", parse_response)
    monkeypatch.setattr(grpo_trainer, "parse_response", parse_response)
    monkeypatch.setattr(GRPOTrainer, "_tokenize_prompts", tokenize_prompts)
    rolled_out("environment_factory", chain_sum, server, tmp_path)
    assert rendered == [len(set(SEEDS))]
    assert len(parsed) == len(set(SEEDS))


def test_every_rollout_of_a_group_counts_its_calls_although_equal_ones_are_checked_once(
    chain_sum, server, tmp_path, monkeypatch
):

    played, checked, play = [], [], rollouts.play_turns

    def noting(*given: Any) -> Any:
        played.append(play(*given))
        return played[-1]

    def checks(message: dict[str, Any], tools: list[dict[str, Any]]) -> list[str]:
        checked.append(message)
        return ["off the schema"]

    monkeypatch.setattr(rollouts, "play_turns", noting)
    monkeypatch.setattr(rollouts, "problems", checks)
    rolled_out("environment_factory", chain_sum, server, tmp_path)
    assert (played[0].calls, played[0].wrong_calls) == (len(SEEDS), len(SEEDS))
    assert len(checked) == len(set(SEEDS))


def test_the_environments_loop_is_woken_once_for_all_rollouts_of_a_turn(chain_sum, server, monkeypatch):
    woken, start = [], waiting.start

    def starting(coroutine: Any) -> Any:
        woken.append(coroutine)
        return start(coroutine)

    monkeypatch.setattr(rollouts_module, "start", starting)
    with EnvironmentPool(chain_sum, server, size=len(SEEDS)) as pool, LiveRollouts(pool) as rollouts:
        pool.open_all()
        questions = {seed: pool.players[0].ask(seed) for seed in SEEDS}
        rollouts.begin([{"seed": seed, "question": questions[seed]} for seed in SEEDS])
        call = {"type": "function", "function": {"name": "answer", "arguments": {"answer": "1"}}}
        rollouts.step({n: {"role": "assistant", "content": "", "tool_calls": [call]} for n in range(len(SEEDS))})
        rollouts.wait()
        assert [environment.done for environment in rollouts.players] == [True] * len(SEEDS)
    assert len(woken) == 2


def test_what_the_server_asks_must_be_what_was_written_down(chain_sum, server):
    from apprentice.tasks.reporting.errors import Stop

    with EnvironmentPool(chain_sum, server, size=1) as pool, LiveRollouts(pool) as rollouts:
        rollouts.begin([{"seed": 3, "question": "Another one?"}])
        call = {"type": "function", "function": {"name": "answer", "arguments": {"answer": "1"}}}
        rollouts.step({0: {"role": "assistant", "content": "", "tool_calls": [call]}})
        with pytest.raises(Stop, match="For seed 3 the server asks another question"):
            rollouts.wait()


def test_the_tools_are_those_of_the_environment(chain_sum, server):
    with EnvironmentPool(chain_sum, server, size=1) as pool, LiveRollouts(pool) as rollouts:
        _, how = ROLLOUT_MODES["environment_factory"](chain_sum.make(), rollouts)
    shown = how["environment_factory"]()
    assert shown.schemas == chain_sum.make().schemas
    assert shown.reset(question="What?", seed=3, prompt=[]) == "What?"
