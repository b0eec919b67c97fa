"""Exports a model for llama.cpp: writes it in several forms, and measures each before it is called done.

In: a checkpoint, its own evaluation, the questions of that. Out: `Exported`: a GGUF file for each form, a Modelfile for
Ollama, export.json with what was measured, the answers. What is measured, through llama.cpp's own server: the token ids
of prompts with tools, the accuracy on the same questions, tokens per second, memory. Finished files and episodes are
kept in the scratch folder, so an interrupted export resumes there.
"""

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.types import Checkpoint, Evaluation, Exported, Questions
from apprentice.tasks.engine.stage import StageContext, stage
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes
from apprentice.tasks.episodes.rendering import prompt_ids, switch_sent
from apprentice.tasks.episodes.thinking import thinking_of, turn_tokens
from apprentice.tasks.evaluate import as_evaluated, evaluation_journal, played_at
from apprentice.tasks.models.configuration import context_length
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import as_stop
from apprentice.tasks.serving.engine import Engine, EngineFailed, launch, llama_server, post
from apprentice.tasks.serving.exported import CONTENTS, ExportContents, measured
from apprentice.tasks.serving.gguf import FULL, check_exportable, check_tools, convert, quantize
from apprentice.tasks.serving.modelfile import modelfile
from apprentice.tasks.settings.endpoint import LocalEndpoint
from apprentice.tasks.settings.spec import EvaluateSpec, ExportSpec, ThinkingSpec

SLOTS = 4
"""Requests at once while a file is measured."""
SPEED_TOKENS = 64
"""Tokens that one request writes while speed is measured, with no other beside it."""


@stage(produces=Exported, version=1, title="Export of {checkpoint.stage} for llama.cpp")
def export(
    context: StageContext,
    spec: ExportSpec,
    evaluated: EvaluateSpec,
    checkpoint: Checkpoint,
    evaluation: Evaluation,
    environment: EnvironmentSpec,
    questions: Questions,
    llama_cpp: str,
) -> dict[str, Any]:
    """Writes and measures each form. Raises Stop for a model that llama.cpp cannot serve as it was trained.

    Args:
        spec: With how the checkpoint thinks, if it does (`ExportSpec.of`).
        evaluation: The checkpoint's own, with which each file's is paired.
        llama_cpp: What llama.cpp says of its version; another one may write other files.
    """
    source, called = context.fetch(checkpoint), f"{checkpoint.repository}@{checkpoint.key}"
    tokenizer = load_tokenizer(source, context.run.trusted)
    check_exportable(source, tokenizer, called)
    check_tools(spec.quantize)
    before, thinking = read_episodes(context.fetch(evaluation)), thinking_of(tokenizer)
    room = _context(source, before, turn_tokens(evaluated.max_new_tokens, thinking))
    full = context.scratch / f"{context.run.store.project}-{FULL}.gguf"
    convert(source, full, called)
    files = []
    for form in spec.quantize:
        file = full.with_name(f"{context.run.store.project}-{form}.gguf")
        if form != FULL:
            quantize(full, file, form, called)
        with _served(file, tokenizer.chat_template, room) as engine:
            same = same_prompts(engine, tokenizer, environment, before, spec.prompts)
            after = _play(context, evaluated, engine, form, environment, questions, thinking)
            figures = same, _speed(engine, before, thinking), engine.memory()
        command = shlex.join(llama_server("llama-server", file.name, tokenizer.chat_template, 1, room, port="8080"))
        files.append(measured(form, file, command, before, after, *figures, spec.margin))
        announce.say(files[-1].sentence)
        text = modelfile(file.name, tokenizer, evaluated.model_dump(), room)
        if text:
            (context.out / f"Modelfile-{form}").write_text(text)
    contents = ExportContents(
        llama_cpp=llama_cpp,
        context=room,
        slots=SLOTS,
        margin=spec.margin,
        checkpoint_bytes=sum(each.stat().st_size for each in source.glob("*.safetensors")),
        checkpoint_right=sum(each.is_right for each in before) / len(before),
        questions=len(before),
        files=files,
    )
    (context.out / CONTENTS).write_text(contents.model_dump_json(indent=2) + "\n")
    for form, each in zip(spec.quantize, files, strict=True):
        os.replace(full.with_name(each.name), context.out / each.name)
        os.replace(context.scratch / form / "episodes.jsonl", context.out / f"episodes-{form}.jsonl")
    return {"forms": spec.quantize, "worse": contents.worse}


def _context(source: Path, before: list[EvaluatedEpisode], turn: int) -> int:
    """Tokens of one request: twice what the checkpoint's longest episode had, as far as the model reads.

    Args:
        turn: The most tokens of a turn.
    """
    longest = max(each.prompt_tokens + each.completion_tokens for each in before)
    most = context_length(json.loads((source / "config.json").read_text()))
    return min(most, -(-(2 * longest + turn) // 256) * 256)


@contextmanager
def _served(file: Path, template: str, room: int) -> Iterator[Engine]:
    """llama.cpp's server of a file. Raises Stop where it fails."""
    with (
        as_stop(
            EngineFailed,
            f"llama.cpp does not serve {file.name}: {{}}.",
            "Run the same command again: finished files and episodes are kept. If it fails again, use a newer "
            "llama.cpp (LLAMA_CPP).",
        ),
        Engine(launch("llama.cpp", file, template, SLOTS, room)) as engine,
    ):
        engine.wait_ready()
        yield engine


def same_prompts(
    engine: Engine, tokenizer: Any, environment: EnvironmentSpec, episodes: list[EvaluatedEpisode], most: int
) -> tuple[int, int]:
    """Of how many prompts the engine has the ids of training, and of how many it was asked.

    A prompt ends before each of the assistant's turns, so an episode of several turns has several.
    """
    same = compared = 0
    player, switch = environment.make(), switch_sent(thinks=thinking_of(tokenizer) is not None)
    for episode in episodes:
        tools = player.part(episode.seed).schemas
        for place, message in enumerate(episode.messages):
            if message["role"] == "assistant" and compared < most and place:
                messages = episode.messages[:place]
                body = {"messages": messages, "tools": tools} | switch
                text = post(f"{engine.url}/apply-template", body)["prompt"]
                ids = post(f"{engine.url}/tokenize", {"content": text, "add_special": True, "parse_special": True})[
                    "tokens"
                ]
                same += ids == prompt_ids(tokenizer, messages, tools)
                compared += 1
    return same, compared


def _play(
    context: StageContext,
    evaluated: EvaluateSpec,
    engine: Engine,
    form: str,
    environment: EnvironmentSpec,
    questions: Questions,
    thinking: ThinkingSpec | None,
) -> list[EvaluatedEpisode]:
    """The answers of a file to the questions of the checkpoint's evaluation."""
    folder = context.scratch / form
    folder.mkdir(exist_ok=True)
    served = LocalEndpoint(base_url=f"{engine.url}/v1", model=engine.model, serves_student=True, timeout=600.0)
    endpoint = as_evaluated(served.teaching(thinking), evaluated)
    own = StageContext(context.run, context.key, folder, folder)
    journaled = evaluation_journal(own, evaluated, questions, form)
    with played_at(own, evaluated, endpoint, endpoint.base_url, environment, journaled, SLOTS) as (kept, _):
        (folder / "played.jsonl").write_bytes(b"".join(kept.in_order()))
    os.replace(folder / "played.jsonl", folder / "episodes.jsonl")
    return read_episodes(folder)


def _speed(engine: Engine, before: list[EvaluatedEpisode], thinking: ThinkingSpec | None) -> tuple[float, float]:
    """Tokens per second of one request alone: read, and written."""
    body = {"messages": before[0].messages[:2]} | switch_sent(thinks=thinking is not None)
    text = post(f"{engine.url}/apply-template", body)["prompt"]
    done = post(
        f"{engine.url}/completion",
        {"prompt": text, "n_predict": SPEED_TOKENS, "ignore_eos": True, "cache_prompt": False, "temperature": 0},
    )["timings"]
    return done["prompt_per_second"], done["predicted_per_second"]
