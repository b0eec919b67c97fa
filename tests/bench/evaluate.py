"""Our evaluation against the public tutorial's loop: one model, the same 200 questions, the same texts.

In: nothing. Out: a row for short and one for long prompts, then one line of JSON; the exit code is 1 where a text
differs or a ratio is below the goal. Takes three minutes on two idle cores.
The documents' loop calls a pipeline for one question, resets and steps the server, and goes on to the next; ours is
`play_batched` under the `tutorial` protocol. Both decode greedily, 64 tokens a question. Loading the model and opening
sessions are set-up and not counted, on either side (`evaluate` opens its sessions while the model loads); what
opening took is printed.
A shared machine slows either for seconds or for minutes, so the two take turns every few seconds: a fifth of the
questions by the documents' loop, then all of them by ours. Three passes; each turn counts with its fastest pass, on
both sides, the documents' turns are added up and of ours the mean is taken.
The model is the student that we build, untrained. As it comes it repeats one token for ever, and any two loops agree on
that; with its projections four times larger nearly every token is used and the texts of all questions differ. Its end
token's embedding is zero, so that no text ends early. What stands in every prompt of the tutorial is one token, as
`build_tokenizer` has it for the prompt of training: 12 to 17 tokens a prompt, "short". "long" leaves it spelt in bytes:
291 to 296 tokens, of which all but the question are the same; ours computes those once in every evaluation.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reasoning_gym import datasets
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.players.local_model import LocalModel
from apprentice.tasks.players.play import Play, play_batched
from apprentice.tasks.players.protocols import PROTOCOLS, TUTORIAL_TOKENS
from apprentice.tasks.settings.spec import EvaluateSpec

DATASET = "chain_sum"
CONFIG = {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}
TASK = EnvironmentSpec(name="reasoning_gym", settings={"dataset": DATASET, "config": CONFIG})
SEEDS = range(999, 1199)
BATCH = 200
TURNS = 5
PASSES = 3
GOAL = 10.0
"""How many times faster ours is to be, with either length of prompts."""
SHARPER = 4.0
"""By how much the projections of the built student are enlarged."""


class Round(NamedTuple):
    """One evaluation of all questions."""

    seconds: float
    opening: float
    texts: list[str]
    scores: list[float | None]
    tokens: int


class Counter:
    """Counts the tokens that a model's `generate` writes before it ends a text."""

    def __init__(self, model: Any):
        self.tokens = 0
        self._generate: Callable[..., Any] = model.generate
        self._end = model.config.eos_token_id
        model.generate = self

    def __call__(self, input_ids: Any, **given: Any) -> Any:
        out = self._generate(input_ids=input_ids, **given)
        ended = (out[:, input_ids.shape[1] :] == self._end).cumsum(1) > 0
        self.tokens += int((~ended).sum())
        return out


class Documents:
    """The documents' loop: everything for one question, then everything for the next."""

    def __init__(self, checkpoint: Path, url: str):
        from transformers import AutoTokenizer, pipeline

        name = str(checkpoint)
        self._pipeline = pipeline("text-generation", model=name, tokenizer=name, device_map="auto", dtype="auto")
        self._pipeline.model.generation_config.max_length = None
        self._tokenizer = AutoTokenizer.from_pretrained(name)
        self._counter = Counter(self._pipeline.model)
        self._environment = TASK.make()
        self._url = url

    def play(self, seeds: range) -> Round:
        return asyncio.run(self._play(seeds))

    async def _play(self, seeds: range) -> Round:
        from openenv.core.generic_client import GenericEnvClient

        self._counter.tokens = 0
        texts, scores = [], []
        arrived = time.perf_counter()
        env = GenericEnvClient(base_url=self._url)
        await env.connect()
        began = time.perf_counter()
        for seed in seeds:
            # The document sends a dataset once and then bare resets, which walk through it. Our server keeps no place
            # in a dataset and refuses them; item i of the dataset is the question of seed + i, so each is named.
            result = await env.reset(dataset_name=DATASET, dataset_config=CONFIG, seed=seed, size=1)
            completion = self._complete(result.observation["question"])
            m = re.search(r'"answer"\s*:\s*"?(\d+)"?', completion)
            nums = re.findall(r"\b(\d+)\b", completion)
            answer = m.group(1) if m else nums[-1] if nums else "0"
            result = await env.step({"answer": answer})
            texts.append(completion)
            scores.append(float(result.observation["score"] or 0.0))
        seconds = time.perf_counter() - began
        await env.close()
        return Round(seconds, began - arrived, texts, scores, self._counter.tokens)

    def _complete(self, question: str) -> str:
        messages = prompt(self._environment, question)
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        # greedy: the document leaves it to the pipeline's default, which samples, and two samples say nothing
        written = self._pipeline(text, max_new_tokens=TUTORIAL_TOKENS, do_sample=False)
        return written[0]["generated_text"][len(text) :]


class Ours:
    """The body of the stage `evaluate`, without its journal."""

    def __init__(self, checkpoint: Path, url: str, batch: int):
        self._model = LocalModel(checkpoint, EvaluateSpec(batch_size=batch), PROTOCOLS["tutorial"], seed=0)
        self._counter = Counter(self._model._model)
        self._server = EnvironmentServer(url=url)
        self._batch = batch

    def prompt_tokens(self, seeds: range) -> list[int]:
        """Tokens of each prompt."""
        environment = TASK.make()
        chats = [prompt(environment, question(seed)) for seed in seeds]
        ids = self._model._tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False)
        return [len(each) for each in ids]

    def play(self, seeds: range) -> Round:
        self._counter.tokens = 0
        self._model._prefix._ids = []  # an evaluation begins without
        records: list[EvaluatedEpisode] = []
        plays = [Play(place, seed, question(seed), 0) for place, seed in enumerate(seeds)]
        arrived = time.perf_counter()
        with EnvironmentPool(TASK, self._server, min(self._batch, len(plays))) as pool:
            pool.open_ahead().result()
            began = time.perf_counter()
            play_batched(pool, plays, self._model, PROTOCOLS["tutorial"], records.append)
            seconds = time.perf_counter() - began
        records.sort(key=lambda record: record.place)
        texts = [record.messages[-1]["content"] for record in records]
        return Round(seconds, began - arrived, texts, [record.reward for record in records], self._counter.tokens)


def question(seed: int) -> str:
    """What the server asks under a seed; an evaluation of ours knows it beforehand, from its `Questions`."""
    return datasets.entry(DATASET, CONFIG, seed)[1]["question"]


def build(to: Path, spelt: bool) -> None:
    """Writes the model and its tokenizer."""
    import torch
    from tokenizers import AddedToken
    from transformers.utils import logging

    from apprentice.tasks.models.checkpoints import load_model, save
    from apprentice.tasks.models.student_model import built_model
    from apprentice.tasks.settings.spec import BuiltStudent
    from tests.tokenizers import build_tokenizer

    logging.disable_progress_bar()
    questions = [question(seed) for seed in SEEDS]
    tokenizer = build_tokenizer(TASK, questions)
    save(built_model(BuiltStudent(), tokenizer, 0), tokenizer, to)
    model = load_model(to)
    if not spelt:
        frame = prompt(TASK.make(), os.path.commonprefix(questions) + "\0")  # noqa: RUF071 (of characters)
        rendered = tokenizer.apply_chat_template(frame, tokenize=False).split("\0")[0]
        tokenizer.add_tokens([AddedToken(rendered, normalized=False)])
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "_proj." in name:
                weight.mul_(SHARPER)
        model.get_input_embeddings().weight[tokenizer.eos_token_id] = 0.0
    save(model, tokenizer, to)


def compare(checkpoint: Path, url: str, batch: int) -> dict[str, Any]:
    documents, ours = Documents(checkpoint, url), Ours(checkpoint, url, batch)
    documents.play(SEEDS[:5])  # imports, and what is allocated once
    ours.play(SEEDS)
    parts = [SEEDS[place : place + len(SEEDS) // TURNS] for place in range(0, len(SEEDS), len(SEEDS) // TURNS)]
    document_passes: list[list[Round]] = []
    our_passes: list[list[Round]] = []
    for _ in range(PASSES):
        turns = [(documents.play(part), ours.play(SEEDS)) for part in parts]
        document_passes.append([their for their, _ in turns])
        our_passes.append([our for _, our in turns])
        print(
            f"documents {seconds(document_passes[-1:]):.2f} s, ours {seconds(our_passes[-1:]) / TURNS:.2f} s",
            flush=True,
        )
    agree = agreement(document_passes, our_passes)
    documents_s, ours_s, lengths = seconds(document_passes), seconds(our_passes) / TURNS, ours.prompt_tokens(SEEDS)
    return {
        "prompt_tokens": [min(lengths), max(lengths)],
        "documents_s": round(documents_s, 2),
        "ours_s": round(ours_s, 3),
        "ratio": round(documents_s / ours_s, 1),
        "texts_equal": agree,
    }


def seconds(passes: list[list[Round]]) -> float:
    """Of all turns, each in its fastest pass."""
    return sum(min(each.seconds for each in turn) for turn in zip(*passes, strict=True))


def agreement(document_passes: list[list[Round]], our_passes: list[list[Round]]) -> bool:
    """Whether every text of every pass and turn is the same on both sides; prints what was written."""
    document_texts = [[text for part in turns for text in part.texts] for turns in document_passes]
    our_texts = [turn.texts for turns in our_passes for turn in turns]
    expected = document_texts[0]
    differing = {
        place
        for texts in document_texts + our_texts
        for place, (text, wanted) in enumerate(zip(texts, expected, strict=True))
        if text != wanted
    }
    tokens = (
        {sum(part.tokens for part in turns) for turns in document_passes},
        {turn.tokens for turns in our_passes for turn in turns},
    )
    assert tokens == ({len(SEEDS) * TUTORIAL_TOKENS},) * 2, tokens
    scores = [score for part in document_passes[0] for score in part.scores]
    assert differing or scores == our_passes[0][0].scores
    opening = [min(turn.opening for turns in side for turn in turns) for side in (document_passes, our_passes)]
    print(f"opening sessions, not counted: documents {opening[0]:.3f} s, ours {opening[1]:.3f} s")
    counted = (seconds(document_passes) + opening[0]) / (seconds(our_passes) / TURNS + opening[1])
    print(f"with it the ratio would be {counted:.1f}")
    print(f"tokens written: {len(SEEDS) * TUTORIAL_TOKENS} on each side, {len(set(expected))} distinct texts")
    print(f"differing texts: {len(differing)} of {len(SEEDS)}")
    return not differing


def table(found: dict[str, dict[str, Any]]) -> None:
    print("| tokens of a prompt | tutorial's loop | ours | ratio | equal texts |\n|" + " --- |" * 5)
    for row in found.values():
        least, most = row["prompt_tokens"]
        equal = "yes" if row["texts_equal"] else "no"
        cells = f"{least} to {most}", f"{row['documents_s']} s", f"{row['ours_s']} s", f"{row['ratio']}×", equal
        print(f"| {' | '.join(cells)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=BATCH, help="our episodes at once")
    arguments = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with local_server(
        "apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", str(2 * arguments.batch)
    ) as url:
        for name, spelt in (("short", False), ("long", True)):
            with tempfile.TemporaryDirectory() as folder:
                build(Path(folder), spelt)
                found[name] = compare(Path(folder), url, arguments.batch)
    table(found)
    print(json.dumps({"questions": len(SEEDS), **found}))
    return 0 if all(each["texts_equal"] and each["ratio"] >= GOAL for each in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
