"""Predicts how long SFT, GRPO and an evaluation take on this machine, and how much memory a training needs.

In: the settings, a model's configuration, the length of the texts. Out: seconds and bytes of each stage.

A layer of the model's own shape is measured here, once on a machine, in a second or a few; a model is as many of them.
Assumed: one turn an episode; texts as long as the example's; half of a completion is the same in all of its group; a
GRPO step asks as many questions as `grpo.oversample` allows. Without `share_prompts`, every row has its whole prompt.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import cache
from math import ceil
from typing import Any, NamedTuple

from apprentice.envs.base import ToolEnvironment, tool_schemas
from apprentice.envs.defaults import kept
from apprentice.tasks.episodes.episode import Message, prompt
from apprentice.tasks.episodes.rendering import prompt_ids, row_ids, training_row
from apprentice.tasks.models.memory import this_torch
from apprentice.tasks.settings.spec import EvaluateSpec
from apprentice.tasks.settings.training import GrpoSpec, SftSpec, TrainerSpec

TRAINED, FROZEN = 16, 4
"""Bytes of a weight in fp32: with its gradient and Adam's two moments, and below an adapter."""
PROCESS = 1.2e9
"""Bytes of a process that has imported torch, transformers and TRL."""
TOKENS = 256
ROWS = 8, 64


class Lengths(NamedTuple):
    """Tokens of a task's texts."""

    shared: int
    """What all prompts begin with."""
    question: int
    """The rest of a prompt."""
    completion: int
    row: int
    """A whole training row."""

    @classmethod
    def of(cls, tokenizer: Any, environment: ToolEnvironment, questions: list[str], called: Message) -> "Lengths":
        """Those of questions that are answered by this turn with calls."""
        tools = tool_schemas(environment)
        prompts = [prompt_ids(tokenizer, prompt(environment, question), tools) for question in questions]
        shared = next((n for n, same in enumerate(zip(*prompts, strict=False)) if len(set(same)) > 1), 0)
        reply = {"role": "tool", "name": called["tool_calls"][0]["function"]["name"], "content": "OK."}
        opening = prompt(environment, questions[0])
        row = len(row_ids(tokenizer, training_row([*opening, called, reply], tools)))
        answered = len(row_ids(tokenizer, training_row([*opening, called], tools)))
        longest = max(map(len, prompts))
        return cls(shared, longest - shared, max(answered - len(prompts[0]), 1), row)


class Pace(NamedTuple):
    """What one layer of a model takes on this machine, and its head."""

    train: float
    """Seconds of a token, forward and backward."""
    saved: float
    """Bytes that a token keeps for the backward pass."""
    call: float
    """Seconds of a generation's pass, however many rows it has."""
    row: float
    """Seconds that each row adds to it."""
    head: float
    """Seconds of a scored token in the head, forward and backward."""
    update: float
    """Seconds of the optimizer for one weight."""


class Shape(NamedTuple):
    layers: int
    weights: int


class Forecast(NamedTuple):
    seconds: float
    bytes: float
    """Of the process at its peak."""


def of_sft(spec: SftSpec, rows: int, lengths: Lengths, shape: Shape, pace: Pace) -> Forecast:
    trained = min(rows, spec.max_rows or rows) * (1 - spec.held_out)
    batches = ceil(trained / spec.batch_size) * spec.epochs
    shared = lengths.shared if spec.share_prompts else 0
    tokens = shared + spec.batch_size * (lengths.row - shared)
    scored = spec.batch_size * lengths.completion
    return _training(spec, batches, tokens, scored, shape, pace)


def of_grpo(spec: GrpoSpec, lengths: Lengths, shape: Shape, pace: Pace) -> Forecast:
    rows, groups = spec.batch_size, max(spec.batch_size // spec.num_generations, 1)
    if spec.share_prompts:
        own = groups * (lengths.question + lengths.completion) + (rows - groups) * lengths.completion / 2
        tokens = lengths.shared + own
    else:
        tokens = rows * (lengths.shared + lengths.question + lengths.completion)
    batches = spec.max_steps * spec.gradient_accumulation
    learned = _training(spec, batches, tokens, rows * lengths.completion, shape, pace)
    together = rows * spec.gradient_accumulation
    said = _said(together, lengths, shape, pace) * spec.oversample
    return learned._replace(seconds=learned.seconds + spec.max_steps * said)


def of_answers(spec: EvaluateSpec, lengths: Lengths, shape: Shape, pace: Pace) -> float:
    """Seconds in which a model answers `evaluate.questions`."""
    return ceil(spec.questions * spec.samples / spec.batch_size) * _said(spec.batch_size, lengths, shape, pace)


def _training(spec: TrainerSpec, batches: float, tokens: float, scored: float, shape: Shape, pace: Pace) -> Forecast:
    update = shape.weights * pace.update / spec.gradient_accumulation if spec.lora is None else 0.0
    seconds = batches * (shape.layers * tokens * pace.train + scored * pace.head + update)
    saved = tokens * pace.saved * (1 if spec.gradient_checkpointing else shape.layers)
    return Forecast(seconds, PROCESS + shape.weights * (TRAINED if spec.lora is None else FROZEN) + saved)


def _said(rows: int, lengths: Lengths, shape: Shape, pace: Pace) -> float:
    """Seconds in which so many rows are read and answered; a pass without gradients takes a third."""
    read = rows * lengths.question * shape.layers * pace.train / 3
    return read + lengths.completion * (shape.layers * (pace.call + rows * pace.row) + rows * pace.head / 3)


def pace_of(config: Any, bf16: bool) -> Pace:
    """The pace of a model with this configuration; it is measured once on a machine."""
    text = config.get_text_config()
    shape = json.dumps(text.to_diff_dict(), sort_keys=True, default=str)
    key = f"{this_torch()}, {'bf16' if bf16 else 'fp32'}, {hashlib.sha256(shape.encode()).hexdigest()[:12]}"
    measured = cache(lambda: _measured(text, bf16))
    found = (kept("pace", f"{key}, {name}", lambda name=name: getattr(measured(), name)) for name in Pace._fields)
    return Pace(*found)


def _measured(config: Any, bf16: bool) -> Pace:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    one, three = (_layers(config, count).to(device) for count in (1, 3))
    computing: Callable[[], AbstractContextManager[Any]] = nullcontext
    if bf16:
        computing = lambda: torch.autocast(device, torch.bfloat16)  # noqa: E731
    times = [_best(lambda model=model: _trained(model, computing)) for model in (one, three)]
    saved = [[_saved(model, tokens, computing) for tokens in (TOKENS, 2 * TOKENS)] for model in (one, three)]
    grown = [more - less for less, more in saved]
    for model in (one, three):
        model.to(torch.bfloat16 if bf16 else torch.float32)
    passes = [[_best(_next(model, rows)) for rows in ROWS] for model in (one, three)]
    few, many = (max((late - early) / 2, 1e-7) for early, late in zip(*passes, strict=True))
    row = max((many - few) / (ROWS[1] - ROWS[0]), 0.0)
    return Pace(
        train=max(times[1] - times[0], 1e-7) / 2 / TOKENS,
        saved=(grown[1] - grown[0]) / 2 / TOKENS,
        call=max(few - ROWS[0] * row, 0.0),
        row=row,
        head=_head(config.hidden_size, config.vocab_size, device),
        update=_update(device),
    )


def _layers(config: Any, count: int) -> Any:
    """A model of some layers of this shape, with few words."""
    import torch
    from transformers import AutoModelForCausalLM

    config = deepcopy(config)
    config.num_hidden_layers, config.vocab_size, config.dtype = count, 64, torch.float32
    config.pad_token_id = config.bos_token_id = config.eos_token_id = None
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[0]] * count
    return AutoModelForCausalLM.from_config(config)


def _trained(model: Any, computing: Callable[[], AbstractContextManager[Any]], tokens: int = TOKENS) -> None:
    import torch

    ids = torch.zeros(1, tokens, dtype=torch.long, device=model.device)
    with computing():
        loss = model(input_ids=ids).logits.float().sum()
    loss.backward()


def _saved(model: Any, tokens: int, computing: Callable[[], AbstractContextManager[Any]]) -> float:
    """Bytes that a pass keeps for the backward one, each tensor once."""
    import torch

    sizes: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _trained(model, computing, tokens)
    return float(sum(sizes.values()))


def _next(model: Any, rows: int) -> Callable[[], Any]:
    """A pass for one token more of each row, after `TOKENS` others."""
    import torch
    from transformers.cache_utils import DynamicCache

    cache, ids = DynamicCache(config=model.config), torch.zeros(1, TOKENS, dtype=torch.long, device=model.device)

    @torch.no_grad()
    def forward(given: Any) -> None:
        model(input_ids=given, past_key_values=cache, use_cache=True)

    forward(ids)
    cache.batch_repeat_interleave(rows)
    return lambda: forward(ids[:, :1].expand(rows, 1))


def _head(hidden: int, words: int, device: str) -> float:
    import torch

    some, tokens = min(words, 8192), 128
    weight = torch.randn(some, hidden, device=device, requires_grad=True)
    states = torch.randn(tokens, hidden, device=device, requires_grad=True)
    return _best(lambda: (states @ weight.T).logsumexp(dim=1).sum().backward()) * words / some / tokens


def _update(device: str) -> float:
    import torch

    weight = torch.nn.Parameter(torch.zeros(2**22, device=device))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight])
    return _best(optimizer.step) / weight.numel()


def _best(run: Callable[[], Any]) -> float:
    """Seconds of the quickest of four runs; the first one only warms up."""
    import torch

    times = []
    for _ in range(4):
        began = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def told(found: Iterable[tuple[str, float, float | None]]) -> str:
    """One line: stages with their seconds, and bytes where they matter."""
    parts = []
    for name, seconds, size in found:
        parts.append(f"{name} {_time(seconds)}" + (f" and {size / 1e9:.1f} GB" if size else ""))
    return f"Predicted for this machine: {', '.join(parts)}."


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
