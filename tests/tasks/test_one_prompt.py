"""Law 1: teacher, SFT, GRPO and evaluation see the same bytes for the same seed.

The GRPO side is not imitated: a real GRPOTrainer runs its own generation and tool loop, with a model that says what we
tell it to, so that the ids compared are those that TRL trains on.
"""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player, facade_of
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reasoning_gym import env
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.tasks.episodes.episode import Episode, prompt
from apprentice.tasks.episodes.rendering import (
    IGNORED,
    TEMPLATE_ARGUMENTS,
    chat_format,
    parse,
    prompt_ids,
    row_ids,
    training_row,
)
from apprentice.tasks.models.trl_internals import show_schemas
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.question_rows import row_of
from apprentice.tasks.rollouts.rollout_modes import by_factory
from apprentice.tasks.sft import training_dataset
from tests.tokenizers import build_tokenizer

SEEDS = (5, 6, 7, 8)


@pytest.fixture
def played(task: EnvironmentSpec, server: EnvironmentServer) -> list[Episode]:
    """Episodes as the scripted teacher plays them over the wire's format."""
    episodes = []
    for seed in SEEDS:
        episode = Episode(task.make(Session(server)), seed)
        name, arguments = env.call(task.settings, episode.messages, 0.0)
        episode.step(said(name, arguments))
        episode.player.close()
        episodes.append(episode)
    return episodes


def said(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    compact = json.dumps(arguments, separators=(",", ":"))  # the wire's spelling, not the template's
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": compact}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.fixture
def tokenizer(task: EnvironmentSpec, played: list[Episode]):
    return build_tokenizer(task, [episode.question for episode in played])


def test_the_teacher_is_shown_the_prompt_and_the_tools_that_the_student_sees(task, played, server):
    for episode in played:
        environment = task.make(Session(server))
        assert episode.messages[:2] == prompt(environment, environment.ask(episode.seed))
        assert episode.tools == environment.schemas
        environment.close()


def test_prompt_ids_are_equal_in_an_sft_row_a_grpo_prompt_and_an_evaluation_prompt(
    task, tokenizer, played, tmp_path, server
):
    rollouts = grpo_rollouts(task, tokenizer, played, tmp_path, server)
    for episode, rollout in zip(played, rollouts, strict=True):
        evaluation = prompt_ids(tokenizer, episode.messages[:2], episode.tools)
        sft = sft_ids(tokenizer, episode, tmp_path)
        assert rollout.prompt_ids == evaluation
        assert sft[: len(evaluation)] == evaluation


def test_a_whole_episode_has_the_ids_in_sft_that_grpo_concatenates(task, tokenizer, played, tmp_path, server):
    """With TRL's own tool loop, which generates a turn after the episode's end."""
    rollouts = grpo_rollouts(task, tokenizer, played, tmp_path, server, own_loop=False)
    for episode, rollout in zip(played, rollouts, strict=True):
        sft = sft_ids(tokenizer, episode, tmp_path)
        concatenated = rollout.prompt_ids + rollout.completion_ids
        # the template ends a turn with a newline after its end token, which no model generates
        assert sft[: len(concatenated)] == concatenated
        assert tokenizer.decode(sft[len(concatenated) :]) == "\n"
        assert rollout.reward == 1.0


def test_what_grpo_learns_from_ends_where_the_environment_ends_the_episode(task, tokenizer, played, tmp_path, server):
    rollouts = grpo_rollouts(task, tokenizer, played, tmp_path, server)
    for episode, rollout in zip(played, rollouts, strict=True):
        sft = sft_ids(tokenizer, episode, tmp_path)
        concatenated = rollout.prompt_ids + rollout.completion_ids
        assert sft[: len(concatenated)] == concatenated
        assert tokenizer.decode(rollout.completion_ids).endswith("</tool_call><|im_end|>")
        assert rollout.reward == 1.0


def test_a_template_that_reads_its_arguments_anywhere_gives_an_sft_row_the_prompt_of_an_evaluation(
    tokenizer, played, tmp_path
):
    """Qwen3's reads them only at the end of a generation prompt; another model's may write them into its first turn."""
    tokenizer.chat_template = (
        "{{ 'quiet: ' if enable_thinking is defined and not enable_thinking else 'thinking: ' }}"
        "{% for message in messages %}{% if message.role == 'assistant' %}"
        "{% generation %}{{ message.content }}.{% endgeneration %}"
        "{% else %}{{ message.content }}{% endif %}{% endfor %}"
    )
    evaluation = prompt_ids(tokenizer, played[0].messages[:2], played[0].tools)
    assert tokenizer.decode(evaluation).startswith("quiet: ")
    assert sft_ids(tokenizer, played[0], tmp_path)[: len(evaluation)] == evaluation


def test_the_tools_reply_carries_no_loss_and_the_assistants_turns_do(tokenizer, played, tmp_path):
    dataset = sft_dataset(tokenizer, played[0], tmp_path)
    learned = tokenizer.decode([i for i, kept in zip(dataset["input_ids"], dataset["learned"], strict=True) if kept])
    answer = played[0].messages[2]["tool_calls"][0]["function"]["arguments"].split('"')[3]
    call = f'<tool_call>\n{{"name": "answer", "arguments": {{"answer": "{answer}"}}}}\n</tool_call><|im_end|>'
    assert learned == f"{call}Done.<|im_end|>", "neither the think block of the prompt nor the line ends after turns"


def test_a_parsed_call_renders_to_the_ids_it_was_parsed_from(tokenizer, played):
    for episode in played:
        ids = row_ids(tokenizer, training_row(episode.messages, episode.tools))
        prefix = prompt_ids(tokenizer, episode.messages[:2], episode.tools)
        turn = ids[len(prefix) : ids.index(tokenizer.eos_token_id, len(prefix)) + 1]
        heard = parse(tokenizer, turn, prefix, episode.tools)
        again = row_ids(tokenizer, training_row([*episode.messages[:2], heard, *episode.messages[3:]], episode.tools))
        assert again == ids


def test_a_qwen3_tokenizer_with_its_plain_template_is_prepared_once_and_for_all(tokenizer, tmp_path):
    """The plain template drops earlier turns' empty think block; what we save and load again does not."""
    from transformers import AutoTokenizer
    from trl.chat_template_utils import is_chat_template_prefix_preserving

    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert is_chat_template_prefix_preserving(loaded)
    assert "{%- generation %}" in loaded.chat_template
    assert loaded.response_template == tokenizer.response_template


# --- the trainers' own ids ------------------------------------------------------------------------------------------


def sft_dataset(tokenizer: Any, episode: Episode, folder) -> dict[str, Any]:
    """The row as TRL's SFTTrainer tokenizes it."""
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    trainer = SFTTrainer(
        model=tiny_model(tokenizer),
        processing_class=tokenizer,
        train_dataset=training_dataset(
            tokenizer, [training_row(episode.messages, episode.tools, episode.player.takes_text)]
        ),
        args=SFTConfig(
            str(folder),
            report_to="none",
            use_cpu=True,
            bf16=False,
            max_length=None,
        ),
    )
    rows: Any = trainer.train_dataset
    return rows[0] | {"learned": [label != IGNORED for label in rows[0]["labels"]]}


def sft_ids(tokenizer: Any, episode: Episode, folder) -> list[int]:
    return list(sft_dataset(tokenizer, episode, folder)["input_ids"])


def tiny_model(tokenizer: Any, positions: int = 512) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=positions,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def grpo_rollouts(
    task: EnvironmentSpec,
    tokenizer: Any,
    played: list[Episode],
    folder,
    server: EnvironmentServer,
    own_loop: bool = True,
) -> list[Any]:
    """What GRPOTrainer makes of the episodes when the model says what the teacher said.

    `own_loop`: with our tool loop, which ends an episode when the environment says so; else with TRL's as it is.
    """
    from trl.trainer.grpo_trainer import GRPOTrainer

    if not own_loop:
        made: list[Player] = []

        def factory() -> Any:
            made.append(task.make(Session(server)))
            return facade_of(made[-1])

        rollouts = generated(GRPOTrainer, tokenizer, task, played, folder, {"environment_factory": factory})
        rewards = [instance.reward for instance in made]
        for instance in made:
            instance.close()
    else:
        with EnvironmentPool(task, server, size=len(played)) as pool, LiveRollouts(pool) as over_there:
            trainer_class, how = by_factory(task.make(), over_there)
            rollouts = generated(trainer_class, tokenizer, task, played, folder, how)
            over_there.wait()
            rewards = [environment.reward for environment in over_there.players]
    return [SimpleNamespace(**rollout, reward=reward) for rollout, reward in zip(rollouts, rewards, strict=True)]


def generated(
    trainer_class: Any, tokenizer: Any, task: EnvironmentSpec, played: list[Episode], folder, how: dict[str, Any]
) -> list[dict[str, Any]]:
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    speeches = {episode.question.strip(): spoken(tokenizer, episode) for episode in played}  # some templates strip it

    class Puppet(trainer_class):
        """Generation is replaced; prompts, parsing, tool calls and concatenation are what they are."""

        def _generate_single_turn(self, prompt_ids, *_: Any, **__: Any):
            texts = [tokenizer.decode(ids) for ids in prompt_ids]
            turns = [next(speech for question, speech in speeches.items() if question in text) for text in texts]
            texts_of = [[tokenizer.decode(turn) for turn in each] for each in turns]
            said = [written_in(text, each) for text, each in zip(texts, texts_of, strict=True)]
            return [list(each[number]) for each, number in zip(turns, said, strict=True)], None

    instance = task.make()
    inputs = [row_of("environment_factory", instance, episode.seed, episode.question) for episode in played]
    longest = max(len(row_ids(tokenizer, training_row(episode.messages, episode.tools))) for episode in played)
    trainer = Puppet(
        model=tiny_model(tokenizer, max(512, 2 * longest)),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(inputs),
        reward_funcs=lambda prompts, **_: [0.0] * len(prompts),
        args=GRPOConfig(
            str(folder),
            report_to="none",
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=len(played),
            num_generations=2,
            max_completion_length=max(256, longest),
            chat_template_kwargs=TEMPLATE_ARGUMENTS,
            max_tool_calling_iterations=1,
        ),
        **how,
    )
    if trainer_class is GRPOTrainer:
        show_schemas(trainer)
    out: Any = trainer._generate_and_score_completions(inputs)
    given, said = out["prompt_mask"].bool(), out["completion_mask"].bool()
    return [
        {
            "prompt_ids": out["prompt_ids"][place][given[place]].tolist(),
            "completion_ids": out["completion_ids"][place][said[place]].tolist(),
            "learned": out["tool_mask"][place][said[place]].bool().tolist(),
        }
        for place in range(len(played))
    ]


def written_in(text: str, turns: list[str]) -> int:
    """How many of the turns a text holds, one after the other; a game may have the same turn twice."""
    at = 0
    for number, turn in enumerate(turns):
        if (found := text.find(turn, at)) < 0:
            return number
        at = found + len(turn)
    return len(turns)


def spoken(tokenizer: Any, episode: Episode) -> list[list[int]]:
    """The model's turns of an episode as ids: what SFT puts loss on, less what the generation prompt already holds."""
    row = training_row(episode.messages, episode.tools)
    ids = row_ids(tokenizer, row)
    turns = []
    for place, message in enumerate(row["messages"]):
        if message["role"] == "assistant":
            begin = len(prompt_ids(tokenizer, row["messages"][:place], episode.tools))
            ends = [place for place in range(begin, len(ids)) if ids[place] in chat_format(tokenizer).ends]
            turns.append(ids[begin : ends[0] + 1])
    return turns
