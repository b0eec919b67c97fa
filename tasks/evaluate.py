"""Examines one model on the held-out questions, with the prompt and the parser of training.

In: a checkpoint, the evaluation's `Questions`. Out: `Evaluation`: episodes.jsonl and the three rates.
Episodes are generated in batches and stepped concurrently. Format compliance means that the parser GRPO uses accepts
every call and the arguments fit the schema; accuracy that the reward is 1.0; the mean score includes partial credit.
"""

import json
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.session import SessionLost
from apprentice.tasks import announce
from apprentice.tasks.artifacts import Checkpoint, Evaluation, Questions
from apprentice.tasks.episode import Episode, Message
from apprentice.tasks.errors import Stop
from apprentice.tasks.questions import read_questions
from apprentice.tasks.rendering import load_tokenizer, parse, prompt_ids
from apprentice.tasks.specs import EvaluateSpec
from apprentice.tasks.stage import Bench, stage
from apprentice.tasks.student import load_model


@stage(gives=Evaluation, version=1, title="Evaluation of {checkpoint.stage}")
def evaluate(
    bench: Bench,
    spec: EvaluateSpec,
    checkpoint: Checkpoint,
    environment: EnvironmentSpec,
    questions: Questions,
    seed: int,
) -> dict[str, Any]:
    """Plays every held-out question once. Raises Stop when the environment is lost: no model is judged by an outage."""
    rows = [row for row in read_questions(bench.fetch(questions), "evaluate") if row["used"]]
    player = Player(bench, spec, checkpoint, seed)
    records: list[dict[str, Any]] = []
    with (
        announce.progress(f"evaluate {checkpoint.stage}", len(rows)) as advance,
        EnvironmentPool(environment, bench.work.servers.environment(), spec.batch_size, announce.warn) as pool,
    ):
        for start in range(0, len(rows), spec.batch_size):
            batch = [row["seed"] for row in rows[start : start + spec.batch_size]]
            try:
                episodes = play_together(pool, batch, player)
            except SessionLost as lost:
                raise Stop(
                    f"The evaluation lost the environment: {lost}",
                    "See that its server runs, then run again.",
                ) from lost
            records += [as_record(episode) for episode in episodes]
            advance(len(batch))
    with (bench.out / "episodes.jsonl").open("w") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    return rates(records) | {"model": checkpoint.stage}


def play_together(pool: EnvironmentPool, seeds: list[int], player: "Player") -> list[Episode]:
    """Plays one episode a seed, all turns of a batch generated together; results in the order of `seeds`."""
    episodes = pool.together(lambda place: Episode(pool.environments[place], seeds[place]), len(seeds))
    while running := [episode for episode in episodes if not episode.done]:
        replies = player.reply(running)
        pool.together(lambda place: running[place].hear(replies[place]), len(running))  # noqa: B023
    return episodes


class Player:
    """A local model that answers a batch of episodes."""

    def __init__(self, bench: Bench, spec: EvaluateSpec, checkpoint: Checkpoint, seed: int):
        import torch
        from transformers import GenerationConfig

        folder = bench.fetch(checkpoint)
        self._tokenizer = load_tokenizer(folder)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = load_model(folder).to(device).eval()
        sampled = {"do_sample": True, "temperature": spec.temperature, "top_k": 0, "top_p": 1.0}
        self._generation = GenerationConfig(
            max_new_tokens=spec.max_new_tokens,
            eos_token_id=self._tokenizer.eos_token_id,
            pad_token_id=self._tokenizer.pad_token_id,
            **(sampled if spec.decoding == "sampled" else {"do_sample": False}),
        )
        torch.manual_seed(seed)

    def reply(self, episodes: list[Episode]) -> list[Message]:
        """The model's next message in every episode; shape: one message an episode."""
        import torch

        prompts = [prompt_ids(self._tokenizer, episode.messages, episode.tools) for episode in episodes]
        inputs = self._tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
        inputs = inputs.to(self._model.device)
        with torch.inference_mode():
            out = self._model.generate(**inputs, generation_config=self._generation)
        written = out[:, inputs["input_ids"].shape[1] :].tolist()
        return [
            parse(self._tokenizer, self._until_end(ids), prefix, episode.tools)
            for ids, prefix, episode in zip(written, prompts, episodes, strict=True)
        ]

    def _until_end(self, ids: list[int]) -> list[int]:
        end = self._tokenizer.eos_token_id
        return ids[: ids.index(end) + 1] if end in ids else ids


def as_record(episode: Episode) -> dict[str, Any]:
    return {
        "seed": episode.seed,
        "question": episode.question,
        "messages": episode.messages,
        "reward": episode.reward,
        "valid": episode.valid,
        "causes": episode.causes,
    }


def rates(records: list[dict[str, Any]]) -> dict[str, Any]:
    """n and the three rates, as shares of all episodes."""
    n = len(records)
    return {
        "n": n,
        "format_compliance": sum(record["valid"] for record in records) / n,
        "accuracy": sum(record["reward"] == 1.0 for record in records) / n,
        "mean_score": sum(record["reward"] for record in records) / n,
    }
