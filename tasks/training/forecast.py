"""Predicts how long SFT, GRPO and the evaluations of a pretrained student take on this machine, before they begin.

In: the settings, the model's configuration, its tokenizer, questions. Out: seconds of each stage, bytes of a training.

What the stages compute again and again is computed here by their own code, with the first layer of a model of this
shape and with its first five; each other layer takes a quarter of the difference. A small model generates with all of
its layers. It is measured once on a machine.
Assumed, until there are rows to learn from: one turn an episode, as long as the scripted policy's or as an example.
Assumed always: a trained student answers as those rows do; in each batch of GRPO one turn is a third longer; 60% of the
groups of a step are equal, and others are asked in their place if `grpo.oversample` says so; half of a group's
completions are alike, and the others differ in their last third, as calls do.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from apprentice.envs.defaults import kept
from apprentice.tasks.episodes.example import drafts_of
from apprentice.tasks.models.checkpoints import reads_rows_at_once
from apprentice.tasks.models.memory import round_weights, this_torch
from apprentice.tasks.models.trl_internals import fit_head_to_caches
from apprentice.tasks.reporting.announce import duration_text
from apprentice.tasks.settings.spec import EvaluateSpec
from apprentice.tasks.settings.training import TrainerSpec
from apprentice.tasks.training.task_texts import Texts

DEPTHS = 1, 5
WHOLE = 2 * 10**8
"""Weights of a model that generates with all of its layers here: a pass takes seconds and little more memory."""
TIMES, ENOUGH = 5, 2.5
"""Passes of each kind after one that only warms up, as long as these seconds are not over; the quickest counts."""
TRIES = 3
"""How often two depths are measured where other work disturbs them."""
SOME = 12
"""Tokens of an answer that are measured."""
TRAINED, FROZEN, SAVED = 16, 4, 12
"""Bytes of a weight in fp32: with its gradient and Adam's two moments; below an adapter; in a checkpoint."""
PROCESS = 2.2e9
"""Bytes of a process that trains beside its tensors: libraries, and what allocator and products of matrices keep. As
three runs of SmolLM2 took."""
MOST_ON_A_CPU = 10**9
"""Weights of a model whose layers are measured in seconds."""
PROBE = 2**26
"""Bytes that are written to measure the disk."""


class Student(NamedTuple):
    """What is predicted for."""

    config: Any
    """The model's own, of transformers."""
    weights: int
    tokenizer: Any
    texts: Texts

    def seconds(self, called: str, run: Callable[[Any], Callable[[], object]], *, generates: bool = False) -> float:
        """Seconds of a pass with all layers.

        Args:
            called: The pass and all that it depends on, but for model and texts.
            run: Takes a model of few layers, returns the pass.
            generates: Whether it keeps nothing for a backward pass.
        """
        return self._whole(called, run, _best, is_small=generates and self.weights <= WHOLE)

    def saved(self, called: str, run: Callable[[Any], Callable[[], object]]) -> float:
        """Bytes that a pass with all layers keeps for the backward pass."""
        return self._whole(f"{called} saved", run, _saved)

    def _whole(
        self,
        called: str,
        run: Callable[[Any], Callable[[], object]],
        measure: Callable[..., float],
        is_small: bool = False,
    ) -> float:
        """What is measured with few layers, for all; once on this machine."""
        text = self.config.get_text_config()
        shape = json.dumps([text.to_diff_dict(), self.texts.lengths], sort_keys=True, default=str)
        key = f"idle {this_torch()}, {ENOUGH} s, {hashlib.sha256(shape.encode()).hexdigest()[:12]}, {called}"

        def whole() -> float:
            if is_small:
                model = _model(text, text.num_hidden_layers)
                return measure(run(model), model)
            for _ in range(TRIES):
                few, more = (measure(run(model), model) for model in (_model(text, depth) for depth in DEPTHS))
                if few <= more:
                    return few + (more - few) / (DEPTHS[1] - DEPTHS[0]) * (text.num_hidden_layers - DEPTHS[0])
            raise RuntimeError(f"{DEPTHS[1]} layers took less than {DEPTHS[0]}: other work runs beside this")

        return kept("forecast", key, whole, keeps=not is_busy())


@cache
def is_busy() -> bool:
    """Whether other work ran on this machine when this process first asked: what is measured beside it is too long."""
    cores = os.cpu_count() or 1
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > cores / 2


class Forecast(NamedTuple):
    seconds: float
    bytes: float = 0.0
    """Of the process at its peak; 0 for an evaluation."""


def can_be_measured(config: Any, weights: int, trainings: list[TrainerSpec]) -> bool:
    """Whether the passes can be made here: a model for text alone, whole in one process, of a size for this machine."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    alone = all(each.processes == 1 and not (each.lora and each.lora.quantized) for each in trainings)
    plain = all(each.plain_generation for each in trainings)
    sized = torch.cuda.is_available() or weights <= MOST_ON_A_CPU
    return type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and alone and plain and sized


def of_answers(spec: EvaluateSpec, questions: int, student: Student, most: int, *, ends: bool) -> Forecast:
    """An evaluation with so many questions.

    Args:
        most: Tokens that an answer may have.
        ends: Whether the student answers as it was taught; one that was not does not know when to end.
    """
    called = f"{'taught' if ends else 'endless'} answers of batches {spec.batch_size} {spec.bf16}"
    measured = most if ends else min(most, SOME)  # each further token takes the same
    passes = partial(_answers, spec=spec, student=student, tokens=measured, ends=ends)
    answers = student.seconds(f"{called} {measured}", passes, generates=True)
    return Forecast(math.ceil(questions * spec.samples / spec.batch_size) * answers * most / measured)


def of_stages(
    student: Student, trainings: dict[str, Callable[[Student], Forecast]], evaluation: EvaluateSpec
) -> dict[str, Forecast]:
    """The stages of a run, by their names for people.

    Args:
        trainings: By label, what predicts each.
    """
    found = {label: predict(student) for label, predict in trainings.items()}
    most, untrained = evaluation.max_new_tokens + student.texts.thought, evaluation.of_untrained().questions
    found[f"{evaluation.questions:,} answers"] = of_answers(
        evaluation, evaluation.questions, student, most * student.texts.turns, ends=True
    )
    found[f"{untrained:,} of the untrained student up to"] = of_answers(
        evaluation, untrained, student, most, ends=False
    )
    besides = evaluation.of_thoughts(thinks=student.texts.thought > 0).values()
    if answers := sum(each.questions * each.samples for each in besides):
        one = evaluation.model_copy(update={"samples": 1})
        found[f"{answers:,} more of the trained one"] = of_answers(
            one, answers, student, most * student.texts.turns, ends=True
        )
    return found


def held(spec: TrainerSpec, student: Student) -> float:
    """Bytes that a training holds between its passes."""
    return PROCESS + student.weights * (FROZEN if spec.lora else TRAINED)


def _model(config: Any, depth: int) -> Any:
    """The first layers of a model of this shape, with random weights."""
    import torch
    from transformers import AutoModelForCausalLM

    config = deepcopy(config)
    config.num_hidden_layers, config.dtype = depth, torch.float32
    config.use_cache = True  # a trained model may say otherwise
    if getattr(config, "layer_types", None):
        config.layer_types = list(islice(cycle(config.layer_types), depth))
    config.bos_token_id = config.eos_token_id = None  # texts end by their length
    config.pad_token_id = 0
    model = AutoModelForCausalLM.from_config(config).to("cuda" if torch.cuda.is_available() else "cpu")
    fit_head_to_caches()
    return reads_rows_at_once(model)


def _answers(model: Any, spec: EvaluateSpec, student: Student, tokens: int, ends: bool) -> Callable[[], object]:
    """One batch of questions, answered greedily, each of at most so many tokens."""
    import torch
    from transformers import GenerationConfig

    from apprentice.tasks.models.decoding import decode
    from apprentice.tasks.models.shared_prefix import SharedPrefix, in_common, rests

    if spec.bf16:
        round_weights(model)
    texts = student.texts
    own = min(in_common(texts.prompts), min(map(len, texts.prompts)) - 1)
    prompts = [  # each asks something else
        [*ids[:own], place % model.config.vocab_size, *ids[own + 1 :]]
        for place, ids in enumerate(texts.repeated(spec.batch_size))
    ]
    written = [ids[:tokens] for ids in texts.answers]
    last = {ids[-1] for ids in written}
    table = torch.zeros(len(written), max(map(len, written)), dtype=torch.long, device=model.device)
    for row, ids in zip(table, written, strict=True):  # it ends nowhere but at its end, also one of several turns
        row[: len(ids)] = torch.tensor([*(0 if each in last else each for each in ids[:-1]), ids[-1]])
    longest = table.shape[1] if ends else tokens
    settings = GenerationConfig(
        max_new_tokens=longest,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=sorted(last) if ends else None,
        disable_compile=True,
    )
    prefix = SharedPrefix(model, settings)

    def draw(scores: Any, of: Any, rows: Any, lengths: Any, _: int) -> Any:
        scores.argmax(dim=-1)  # what a draw costs
        return table[rows % len(table), lengths]

    as_taught = {"custom_generate": decode, "draw": draw, "draft": drafts_of(student.tokenizer, [*texts.tools]).after}

    def run() -> None:
        with torch.inference_mode():
            cache = prefix.cache(prompts, longest)
            known = 0 if cache is None else cache.get_seq_length()
            inputs = rests(student.tokenizer, prompts, known, model.device)
            how = as_taught if ends and cache is not None else {}
            model.generate(**inputs, past_key_values=cache, generation_config=settings, **how)

    return run


def update(model: Any) -> Callable[[], None]:
    """The optimizer's step after a backward pass."""
    import torch

    weights = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=0.0, fused=True)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def saving(spec: TrainerSpec, student: Student) -> float:
    """Seconds in which a checkpoint is written; one of adapters takes none to speak of."""
    if spec.lora:
        return 0.0
    key = f"idle {this_torch()}, disk"
    return SAVED * student.weights * kept("forecast", key, _second_a_byte, keeps=not is_busy())


def _second_a_byte() -> float:
    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        (Path(folder) / "probe").write_bytes(bytes(PROBE))
        return (time.perf_counter() - began) / PROBE


def _best(run: Callable[[], object], model: Any) -> float:
    """Seconds of the quickest pass but the first, which warms up."""
    import torch

    def seconds() -> float:
        began = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - began

    seconds()
    times = [seconds()]
    while len(times) < TIMES and sum(times) < ENOUGH:
        times.append(seconds())
    return min(times)


def _saved(run: Callable[[], object], model: Any) -> float:
    """Bytes of the tensors that a pass keeps for its backward pass, without the weights."""
    import torch

    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return float(sum(sizes.values()))


def free_memory() -> float | None:
    """Bytes that a process may still take; None where a GPU trains, which has its own."""
    import psutil
    import torch

    return None if torch.cuda.is_available() else float(psutil.virtual_memory().available)


def summary(found: dict[str, Forecast], whence: str = "this machine") -> str:
    """One sentence: the stages with their time and memory."""
    parts = [
        f"{name} {duration_text(each.seconds)}" + (f" and {each.bytes / 1e9:.1f} GB" if each.bytes else "")
        for name, each in found.items()
    ]
    return f"Predicted for {whence}: {', '.join(parts)}."
