"""Predicts how long SFT, GRPO and the evaluations of a pretrained student take on this machine, before they begin.

In: the settings, the model's configuration, its tokenizer, questions. Out: seconds of each stage, bytes of a training.

What the stages compute again and again is computed here by their own code, with the first layer of a model of this
shape and with its first five; each other layer takes a quarter of the difference. It is measured once on a machine.
Assumed, until there are rows to learn from: one turn an episode, as long as the scripted policy's or as an example.
Assumed always: in each batch one turn is a third longer; 60% of the groups of a GRPO step are equal, and others are
asked in their place if `grpo.oversample` says so; half of a group's completions are alike, and the others differ in
their last third, as calls do.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from apprentice.envs.defaults import kept
from apprentice.envs.player import Player
from apprentice.tasks.episodes.episode import Call, prompt, turn_of
from apprentice.tasks.episodes.example import example_episode
from apprentice.tasks.episodes.rendering import IGNORED, labelled, prompt_ids, row_of, training_row
from apprentice.tasks.episodes.thinking import THOUGHT, thinking_of
from apprentice.tasks.models.checkpoints import reads_rows_at_once
from apprentice.tasks.models.memory import in_bf16, this_torch
from apprentice.tasks.models.trl_internals import fit_head_to_caches
from apprentice.tasks.reporting.announce import duration_text
from apprentice.tasks.settings.spec import EvaluateSpec
from apprentice.tasks.settings.training import TrainerSpec

DEPTHS = 1, 5
TIMES, ENOUGH = 5, 2.0
"""Passes of each kind after one that only warms up, as long as these seconds are not over; the quickest counts."""
TRIES = 3
"""How often two depths are measured where other work disturbs them."""
FAR = 1.25
"""How much longer than the texts that a prediction assumed those may be that it is made for."""
SOME = 24
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


class Texts(NamedTuple):
    """A task's texts as token ids, one of each for every question."""

    prompts: list[list[int]]
    rows: list[dict[str, list[int]]]
    """Training rows: `input_ids` and `labels`."""
    thought: int = 0
    """The most tokens of a thought; 0 for a student that answers at once."""

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        environment: Player,
        questions: list[str],
        calls: Sequence[Call],
        thoughts: Sequence[str] = (),
    ) -> "Texts":
        """Those of questions that are answered by one call each.

        Args:
            calls: The right one of each question; without any, each is an example of the environment's first tool.
            thoughts: What leads to each call, for a student that thinks; without any, each has half of its budget.
        """
        tools = environment.schemas
        *_, example, reply = example_episode(tools[0]["function"])
        turns = [turn_of(*call) for call in calls] or [example] * len(questions)
        if thinking := thinking_of(tokenizer):
            half = tokenizer.decode(tokenizer.encode(" 7") * (thinking.max_tokens // 4))  # of two tokens each
            known = list(thoughts) or [half] * len(turns)
            turns = [turn | {THOUGHT: thought} for turn, thought in zip(turns, known, strict=True)]
        chats = [prompt(environment, question) for question in questions]
        whole = (training_row([*each, turn, reply], tools) for each, turn in zip(chats, turns, strict=True))
        prompts = [prompt_ids(tokenizer, each, tools) for each in chats]
        return cls(prompts, [labelled(tokenizer, row) for row in whole], thinking.max_tokens if thinking else 0)

    @classmethod
    def of_rows(cls, tokenizer: Any, kept: Sequence[dict[str, Any]], thought: int) -> "Texts":
        """Those of kept episodes, of one turn or several.

        Args:
            thought: The most tokens of a thought.
        """
        rows = [labelled(tokenizer, row_of(episode)) for episode in kept]
        prompts = [row["input_ids"][: next(_written(row))[0]] for row in rows]
        return cls(prompts, rows, thought)

    @property
    def turn(self) -> list[int]:
        """What the model writes in an episode, of median length, without a closing turn."""
        ids, turns = self._median
        return [token for first, after in turns for token in ids[first:after]]

    @property
    def rest(self) -> list[int]:
        """The same with the replies between its turns."""
        ids, turns = self._median
        return ids[turns[0][0] : turns[-1][1]]

    @property
    def turns(self) -> int:
        return len(self._median[1])

    @property
    def written(self) -> list[tuple[int, int, int]]:
        """Of each row the tokens of its longest turn, those that follow its prompt, and its turns; none of them with a
        closing turn."""
        acts = [each[:-1] or each for each in (list(_written(row)) for row in self.rows)]
        return [(max(after - first for first, after in each), each[-1][1] - each[0][0], len(each)) for each in acts]

    @property
    def _median(self) -> tuple[list[int], list[tuple[int, int]]]:
        """A row's ids, and where its turns begin and end; the last of several closes an episode."""
        turns = [(row["input_ids"], [*_written(row)]) for row in self.rows]
        acts = [(ids, each[:-1] or each) for ids, each in turns]
        return sorted(acts, key=lambda each: sum(after - first for first, after in each[1]))[len(acts) // 2]

    @property
    def lengths(self) -> tuple[int, ...]:
        """What the time depends on: tokens that all prompts begin with, of the longest one, of turn and longest row; of
        episodes with several turns also those after the prompt."""
        from apprentice.tasks.models.shared_prefix import in_common

        longest = max(len(row["input_ids"]) for row in self.rows)
        known = in_common(self.prompts), max(map(len, self.prompts)), len(self.turn), longest
        return known if len(self.rest) == len(self.turn) else (*known, len(self.rest))

    def longest(self, most: int) -> int:
        """Tokens of the longest turn of a batch, which may have `most`."""
        return min(math.ceil(len(self.turn) * 4 / 3), most)

    def exceeds(self, assumed: "Texts") -> bool:
        """Whether a prediction that assumed other texts is far too low for these."""
        lengths, others = (
            (len(each.turn), max(len(row["input_ids"]) for row in each.rows)) for each in (self, assumed)
        )
        return any(length > FAR * other for length, other in zip(lengths, others, strict=True))

    def repeated(self, rows: int, each: int = 1) -> list[list[int]]:
        """So many prompts, `each` times every one."""
        return list(islice(cycle([ids for ids in self.prompts for _ in range(each)]), rows))


def _written(row: dict[str, list[int]]) -> Iterator[tuple[int, int]]:
    """Where each turn of a training row begins, and where it ends."""
    is_said = [label != IGNORED for label in row["labels"]]
    first = None
    for place, said in enumerate([*is_said, False]):
        if said and first is None:
            first = place
        elif not said and first is not None:
            yield first, place
            first = None


class Student(NamedTuple):
    """What is predicted for."""

    config: Any
    """The model's own, of transformers."""
    weights: int
    tokenizer: Any
    texts: Texts

    def seconds(self, called: str, run: Callable[[Any], Callable[[], object]]) -> float:
        """Seconds of a pass with all layers.

        Args:
            called: The pass and all that it depends on, but for model and texts.
            run: Takes a model of few layers, returns the pass.
        """
        return self._whole(called, run, _best)

    def saved(self, called: str, run: Callable[[Any], Callable[[], object]]) -> float:
        """Bytes that a pass with all layers keeps for the backward pass."""
        return self._whole(f"{called} saved", run, _saved)

    def _whole(self, called: str, run: Callable[[Any], Callable[[], object]], measure: Callable[..., float]) -> float:
        """What is measured with few layers, for all; once on this machine."""
        text = self.config.get_text_config()
        shape = json.dumps([text.to_diff_dict(), self.texts.lengths], sort_keys=True, default=str)
        key = f"idle {this_torch()}, {hashlib.sha256(shape.encode()).hexdigest()[:12]}, {called}"

        def whole() -> float:
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


def of_answers(spec: EvaluateSpec, questions: int, student: Student, tokens: int) -> Forecast:
    """An evaluation with so many questions, in each batch of which the longest turn has so many tokens."""
    called = f"answers of batches {spec.batch_size} {spec.bf16}"
    measured = min(tokens, SOME)  # each further token takes the same
    answers = student.seconds(f"{called} {measured}", partial(_answers, spec=spec, student=student, tokens=measured))
    return Forecast(math.ceil(questions * spec.samples / spec.batch_size) * answers * tokens / measured)


def of_stages(
    student: Student, trainings: dict[str, Callable[[Student], Forecast]], evaluation: EvaluateSpec
) -> dict[str, Forecast]:
    """The stages of a run, by their names for people.

    Args:
        trainings: By label, what predicts each.
    """
    found = {label: predict(student) for label, predict in trainings.items()}
    most, untrained = evaluation.max_new_tokens + student.texts.thought, evaluation.of_untrained().questions
    longest = student.texts.longest(most * student.texts.turns)
    found |= {f"{evaluation.questions:,} answers": of_answers(evaluation, evaluation.questions, student, longest)}
    # it does not know when to end
    return found | {f"{untrained:,} of the untrained student up to": of_answers(evaluation, untrained, student, most)}


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


def _answers(model: Any, spec: EvaluateSpec, student: Student, tokens: int) -> Callable[[], object]:
    """One batch of questions, answered greedily."""
    import torch
    from transformers import GenerationConfig

    from apprentice.tasks.models.shared_prefix import SharedPrefix, rests

    prompts = student.texts.repeated(spec.batch_size)
    settings = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0, disable_compile=True)
    prefix = SharedPrefix(model, settings)

    def run() -> None:
        with torch.inference_mode(), in_bf16(model) if spec.bf16 else nullcontext():
            cache = prefix.cache(prompts, tokens)
            known = 0 if cache is None else cache.get_seq_length()
            inputs = rests(student.tokenizer, prompts, known, model.device)
            model.generate(**inputs, past_key_values=cache, generation_config=settings)

    return run


def arguments_of_a_pass(spec: TrainerSpec, folder: str) -> dict[str, Any]:
    import torch

    return {
        "output_dir": folder,
        "per_device_train_batch_size": spec.batch_size,
        "max_length": None,
        "bf16": False,
        "activation_checkpointing": spec.gradient_checkpointing,
        "use_cpu": not torch.cuda.is_available(),
        "report_to": "none",
        "disable_tqdm": True,
    }


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
    parts = [f"{name} {duration_text(each.seconds)}" + _memory(each.bytes) for name, each in found.items()]
    return f"Predicted for {whence}: {', '.join(parts)}."


def _memory(size: float) -> str:
    return f" and {size / 1e9:.1f} GB" if size else ""
