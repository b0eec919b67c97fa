"""What the environment costs a GRPO step: ours against the public GRPO walkthrough's wrapper, at four distances.

In: nothing. Out: a table, then one line of JSON. Takes about ten minutes on two idle cores.
Both train the same student for the same steps on the same rows, 64 rollouts a step, over a proxy that holds every byte
back each way. The student is built here and untrained; it generates its 32 tokens, and then what the scripted policy
says takes their place, wrong on a third of the questions: so every rollout calls the tool and is scored, as those of a
student that was taught, and rollouts and rewards can be compared one by one.
The wrapper is written as the walkthrough has it, in TRL's own loop, but that `reset` sends the row's seed and settings:
our server refuses a bare reset, and with a seed of its own each instance would be asked something else.
The two take turns at each distance, and the median of the steps after the first counts.
"""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reasoning_gym import env
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.episodes.record import TrainedQuestions
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.models.tokenizer import build_tokenizer
from apprentice.tasks.rollouts.rewards import EnvironmentReward
from apprentice.tasks.rollouts.rollouts import ROLLOUT_MODES, Rollouts, row_of
from apprentice.tasks.settings.training import GrpoSpec

CONFIG = {"min_word_len": 3, "max_word_len": 5}
TASK = EnvironmentSpec(name="reasoning_gym", settings={"dataset": "spell_backward", "config": CONFIG})
WAY = "environment_factory"
ONE_WAY_MS = (0, 20, 50, 100)
ROLLOUTS = 64
GROUP = 8
STEPS = 6
WRONG = 1 / 3
QUIET: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}


class Ran(NamedTuple):
    """One training."""

    seconds: list[float]
    """Of each step."""
    env_seconds: list[float]
    """Of each step, for which the model waited for the environment."""
    questions: list[str]
    rewards: list[float]


class Wrapper:
    """The walkthrough's class: a connection of its own, reset and step one after another."""

    waited_s = 0.0

    def __init__(self, url: str):
        from openenv.core.generic_client import GenericEnvClient

        self.client = GenericEnvClient(base_url=url).sync()
        self.client.connect()
        self.reward = 0.0
        self.done = False
        self.question = ""

    def reset(self, *, seed: int, **kwargs: Any) -> str:
        began = time.perf_counter()
        result = self.client.reset(dataset_name="spell_backward", dataset_config=CONFIG, seed=seed, size=1)
        Wrapper.waited_s += time.perf_counter() - began
        self.reward = 0.0
        self.done = False
        self.question = result.observation["question"]
        return self.question

    def answer(self, answer: str) -> str:
        """Hand in the final answer to the problem.

        Args:
            answer: The bare result.

        Returns:
            A confirmation that the answer was received.
        """
        if self.done:
            raise ValueError("Episode is already finished.")
        began = time.perf_counter()
        result = self.client.step({"answer": str(answer)})
        Wrapper.waited_s += time.perf_counter() - began
        self.reward = float(result.observation["score"] or 0.0)
        self.done = True
        return f"score={self.reward} correct={result.observation['correct_answer']}"


def built(url: str) -> tuple[Any, Any, dict[int, str]]:
    """An untrained student of 27 million parameters, its tokenizer, and the questions by seed."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    def ask(environment: Any, seed: int) -> str:
        return environment.ask(seed)

    with EnvironmentPool(TASK, EnvironmentServer(url=url)) as pool:
        questions = dict(sorted(pool.map(ask, range(STEPS * ROLLOUTS // GROUP))))
    tokenizer = build_tokenizer(TASK, list(questions.values()))
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=8,
            head_dim=64,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    return model, tokenizer, questions


def scripted(trainer_class: Any, tokenizer: Any) -> Any:
    """A trainer that generates, and then writes down what the scripted policy says."""

    class Scripted(trainer_class):
        def _generate_single_turn(self, prompt_ids: Any, *given: Any, **more: Any) -> Any:
            super()._generate_single_turn(prompt_ids, *given, **more)
            contexts = [tokenizer.decode(ids) for ids in prompt_ids]
            return [[*tokenizer.encode(says(context)), tokenizer.eos_token_id] for context in contexts], None

    return Scripted


def says(context: str) -> str:
    if "<tool_response>" in context:
        return "Done."
    question = context[context.rindex("<|im_start|>user\n") :].removeprefix("<|im_start|>user\n").split("<|im_end|>")[0]
    name, arguments = env.call(TASK.settings, [{"role": "user", "content": question}], WRONG)
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def trained(ours: bool, model: Any, tokenizer: Any, questions: dict[int, str], url: str, folder: Path) -> Ran:
    """GRPO for STEPS steps, over the server at `url`."""
    from trl import GRPOTrainer

    server = EnvironmentServer(url=url)
    chosen = list(questions.items())
    if not ours:
        made: list[Wrapper] = []

        def factory() -> Wrapper:
            made.append(Wrapper(url))
            return made[-1]

        def reward(environments: list[Wrapper], **_: Any) -> list[float]:
            ran.questions.extend(environment.question for environment in environments)
            ran.rewards.extend(environment.reward for environment in environments)
            return [environment.reward for environment in environments]

        ran = Ran([], [], [], [])
        how = {"environment_factory": factory, "reward_funcs": reward}
        run(GRPOTrainer, how, model, tokenizer, chosen, folder, ran, lambda: Wrapper.waited_s)
        for wrapper in made:
            wrapper.client.close()
        return ran
    with EnvironmentPool(TASK, server, size=ROLLOUTS) as pool, Rollouts(pool) as rollouts:
        pool.open_all()
        ran = Ran([], [], [], [])

        class Noting(EnvironmentReward):
            def __call__(self, seed: Any, question: Any, **row: Any) -> list[float | None]:
                given = super().__call__(seed, question, **row)
                ran.questions.extend(question)
                ran.rewards.extend(each or 0.0 for each in given)
                return given

        noting = Noting(GrpoSpec(), TrainedQuestions(folder / "asked.jsonl"), rollouts)
        trainer_class, way = ROLLOUT_MODES[WAY](TASK.make(), rollouts)
        how = {**way, "reward_funcs": noting}
        run(trainer_class, how, model, tokenizer, chosen, folder, ran, lambda: rollouts.waited_s)
    return ran


def run(
    trainer_class: Any,
    how: dict[str, Any],
    model: Any,
    tokenizer: Any,
    chosen: list[tuple[int, str]],
    folder: Path,
    ran: Ran,
    waited: Any,
) -> None:
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ran.seconds.append(time.perf_counter() - self.began)
            ran.env_seconds.append(waited() - self.waited)
            self.start()

        def start(self) -> None:
            self.began, self.waited = time.perf_counter(), waited()

    instance = TASK.make()
    trainer = scripted(trainer_class, tokenizer)(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([row_of(WAY, instance, *named) for named in chosen]),
        args=GRPOConfig(
            str(folder),
            max_steps=STEPS,
            learning_rate=1e-6,
            per_device_train_batch_size=ROLLOUTS,
            num_generations=GROUP,
            max_completion_length=32,
            shuffle_dataset=False,
            max_tool_calling_iterations=1,
            chat_template_kwargs=TEMPLATE_ARGUMENTS,
            bf16=False,
            seed=0,
            use_cpu=True,
            **QUIET,
        ),
        **how,
    )
    trainer.remove_callback(PrinterCallback)
    clock = Clock()
    trainer.add_callback(clock)
    clock.start()
    trainer.train()


def typical(seconds: list[float]) -> float:
    return statistics.median(seconds[1:])


def main() -> None:
    rows, same, rewards = [], True, []
    print("| each way | ours, s a step | wrapper, s a step | ratio | environment's share of ours |\n|" + " --- |" * 5)
    with (
        tempfile.TemporaryDirectory() as folder,
        local_server("apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", "256") as url,
    ):
        model, tokenizer, questions = built(url)
        trained(True, model, tokenizer, questions, url, Path(folder))  # warms up
        for one_way in ONE_WAY_MS:
            far = ("--to", url.removeprefix("http://"), "--one-way-ms", str(one_way))
            with local_server("tests.bench.distance", *far) as there:
                ran = {ours: trained(ours, model, tokenizer, questions, there, Path(folder)) for ours in (True, False)}
            ours, theirs = ran[True], ran[False]
            same &= (ours.questions, ours.rewards) == (theirs.questions, theirs.rewards)
            rewards = ours.rewards
            share = typical([waited / step for waited, step in zip(ours.env_seconds, ours.seconds, strict=True)])
            one, other = typical(ours.seconds), typical(theirs.seconds)
            rows.append(
                {
                    "rtt_ms": 2 * one_way,
                    "ours_s_per_step": round(one, 3),
                    "wrapper_s_per_step": round(other, 3),
                    "env_share": round(share, 4),
                }
            )
            print(f"| {one_way} ms | {one:.2f} | {other:.2f} | {other / one:.1f}× | {share:.1%} |", flush=True)
    right = sum(reward == 1.0 for reward in rewards) / len(rewards)
    print(f"{len(rewards)} rollouts of each at each distance, {right:.0%} of them right")
    print(json.dumps({"rows": rows, "same_rewards": same}))


if __name__ == "__main__":
    main()
