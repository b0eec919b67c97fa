"""One training of the GPU benchmark by several variants, one after another in one process.

In: a training, variants, a size, an open file, overrides. Out: into that file a line of JSON for each variant, once it
has ended. Arguments and rows are the project's own, and so is what `how.trainer` says. Different are: completions of a
fixed length, which begin with a call, right in every other rollout, so that every group has something to learn;
no checkpoints, no Trackio, as in the documents' figures.
"""

import gc
import itertools
import json
import os
import statistics
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]  # else it is split
if "toy" in sys.argv:  # too small to share between cores
    os.environ["OMP_NUM_THREADS"] = "1"

from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reasoning_gym import env
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.rendering import row_ids
from apprentice.tasks.grpo import grpo_arguments
from apprentice.tasks.lengths import summarise
from apprentice.tasks.settings.spec import LengthsSpec
from apprentice.tasks.settings.trl_arguments import config_of
from apprentice.tasks.sft import training_dataset
from apprentice.tasks.training.trainer import arguments, train
from tests.bench.device import clock, forget_peak, now, peak_flops, peak_memory, reserved_memory
from tests.bench.gpu_generation import generating, settle
from tests.bench.gpu_settings import SIZES, TASK, How, Size, Variant, variant
from tests.bench.gpu_student import model_of, played, pretrained, rows_of, tokenizer_of
from tests.bench.gpu_trainers import grpo_trainer, sft_trainer

WARM_UP = 2
"""Steps that a median leaves out, where more follow."""


@contextmanager
def stage_at(folder: Path, sessions: int) -> Iterator[StageContext]:
    """A running stage with an environment server of its own."""
    with local_server("apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", str(sessions)) as url:
        server = EnvironmentServer(url=url, sessions=sessions)
        work = RunContext(LocalStore(folder / "artifacts", project="bench"), StandingServers({TASK.name: server}, None))
        for name in ("out", "scratch"):
            (folder / name).mkdir()
        yield StageContext(work, "0" * 20, folder / "out", folder / "scratch")


def sft(bench: StageContext, size: Size, chosen: Variant) -> dict[str, Any]:
    """The SFT stage's training; its figures."""
    from trl import SFTConfig

    spec = chosen.sft
    with EnvironmentPool(TASK, bench.run.servers.environment(TASK.name)) as pool:
        episodes = played(pool, range(size.rows))
    rows = rows_of(episodes)
    tokenizer = tokenizer_of(rows, [episode.question for episode in episodes], size)
    lengths = summarise([len(row_ids(tokenizer, row)) for row in rows], LengthsSpec(), size.shape.positions)
    trainer = sft_trainer(chosen)(
        model=model_of(size, tokenizer, chosen.how.attention),
        processing_class=tokenizer,
        train_dataset=training_dataset(tokenizer, rows),
        args=_quiet(
            SFTConfig(**arguments(bench, spec, 0), num_train_epochs=spec.epochs, max_length=lengths["max_length"])
        ),
    )
    ticks = _timed(bench, trainer, "SFT steps")
    trained: Any = trainer.train_dataset
    read = [(len(row["input_ids"]), sum(label != -100 for label in row["labels"])) for row in trained]
    tokens = spec.epochs * sum(length for length, _ in read)
    work = spec.epochs * sum(3 * size.shape.forward(*each) for each in read)
    return _figures(ticks, tokens, work) | {"row_tokens": lengths["p50"]}


def grpo(bench: StageContext, size: Size, chosen: Variant) -> dict[str, Any]:
    """The GRPO stage's training; its figures."""
    spec, server = chosen.grpo, bench.run.servers.environment(TASK.name)
    together = spec.batch_size * spec.gradient_accumulation
    with EnvironmentPool(TASK, server) as pool:
        episodes = played(pool, range(spec.max_steps * together // spec.num_generations))
    tokenizer = tokenizer_of(rows_of(episodes), [episode.question for episode in episodes], size)
    with grpo_trainer(bench, chosen, episodes, tokenizer) as online:
        trainer = _fixed(online.trainer, tokenizer, chosen.how)(
            model=model_of(size, tokenizer, chosen.how.attention),
            processing_class=tokenizer,
            args=_generating(_quiet(config_of(type(spec), grpo_arguments(bench, spec, 0), spec.args)), chosen.how),
            **online.arguments,
        )
        settle(trainer, chosen.how)
        ticks = _timed(bench, trainer, "GRPO steps")
        waited = online.waited()
    return _figures(ticks, *_done(trainer, size)) | _spent(trainer, ticks[-1] - ticks[0], waited)


def _done(trainer: Any, size: Size) -> tuple[int, float]:
    """Tokens, and FLOPs: generated once, and read forward and backward once."""
    work = sum(4 * size.shape.forward(prompt + new, new) for prompt, new in trainer.written)
    return sum(map(sum, trainer.written)), work


def _spent(trainer: Any, seconds: float, waited: float) -> dict[str, Any]:
    """On what GRPO's time went."""
    generated = sum(new for _, new in trainer.written)
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    return {
        "generation_share": round(trainer.generating_s / seconds, 4),
        "generated_per_s": round(generated / trainer.generating_s, 1),
        "env_share": round(waited / seconds, 4),
        "prompt_tokens": round(statistics.median(prompt for prompt, _ in trainer.written)),
        "learns": all(norm > 0 for norm in norms),
    }


def _fixed(trainer_class: Any, tokenizer: Any, how: How) -> Any:
    """A trainer whose completions begin with the policy's call, right in every other rollout; it notes their lengths
    and the seconds of generation."""

    class Fixed(trainer_class):
        def _generate_single_turn(self, prompt_ids: Any, *given: Any, **more: Any) -> Any:
            began = now()
            with generating(self, how):
                ids, logprobs = super()._generate_single_turn(prompt_ids, *given, **more)
            self.generating_s = getattr(self, "generating_s", 0.0) + now() - began
            calls = [tokenizer.encode(_call(tokenizer.decode(ids), n % 2)) for n, ids in enumerate(prompt_ids)]
            written = [[*call, *new[len(call) :]] for call, new in zip(calls, ids, strict=True)]
            lengths = [(len(before), len(new)) for before, new in zip(prompt_ids, written, strict=True)]
            self.written = [*getattr(self, "written", []), *lengths]
            return written, logprobs

    return Fixed


def _call(context: str, wrong: float) -> str:
    question = context[context.rindex("<|im_start|>user\n") :].removeprefix("<|im_start|>user\n").split("<|im_end|>")[0]
    name, arguments = env.call(TASK.settings, [{"role": "user", "content": question}], wrong)
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _quiet(args: Any) -> Any:
    from transformers.trainer_utils import SaveStrategy

    args.save_strategy, args.report_to = SaveStrategy.NO, []
    return args


def _generating(args: Any, how: How) -> Any:
    """Completions of full length: random weights may end a sentence anywhere."""
    args.generation_kwargs = {"min_new_tokens": args.max_completion_length}
    args.cache_implementation = "static" if how.cache == "static" else None
    return args


def _timed(bench: StageContext, trainer: Any, title: str) -> list[float]:
    """When training began, and when each of its steps was done."""
    ticking = clock()
    trainer.add_callback(ticking)
    steps = trainer.args.max_steps
    train(bench, title, trainer, steps if steps > 0 else round(trainer.args.num_train_epochs * _a_pass(trainer)))
    return ticking.ticks


def _a_pass(trainer: Any) -> int:
    return -(-len(trainer.get_train_dataloader()) // trainer.args.gradient_accumulation_steps)


def _figures(ticks: list[float], tokens: float, work: float) -> dict[str, Any]:
    seconds, steps = ticks[-1] - ticks[0], len(ticks) - 1
    each = [after - before for before, after in itertools.pairwise(ticks)]
    peak = peak_flops()
    return {
        "steps": steps,
        "seconds": round(seconds, 2),
        "s_per_step": round(statistics.median(each[WARM_UP:] or each), 4),
        "steps_per_s": round(steps / seconds, 3),
        "tokens_per_s": round(tokens / seconds, 1),
        "tflop_per_s": round(work / seconds / 1e12, 6),
        "peak_share": round(work / seconds / peak, 4) if peak else None,
        "peak_memory_gb": round(peak_memory() / 1e9, 2),
        "reserved_gb": round(reserved_memory() / 1e9, 2),
    }


def main() -> None:
    training, names, size, into, *overrides = sys.argv[1:]
    with open(int(into), "w") as lines:
        for name in names.split(","):
            print(json.dumps(_measured(training, name, SIZES[size], overrides)), file=lines, flush=True)
            gc.collect()  # a trainer and its callbacks refer to each other, and hold the model
            forget_peak()


def _measured(training: str, name: str, size: Size, overrides: list[str]) -> dict[str, Any]:
    """A variant's figures, or why there are none."""
    chosen = variant(name, size, overrides)
    sessions = max(16, 2 * chosen.grpo.batch_size * chosen.grpo.gradient_accumulation)
    weights = "its own" if pretrained(size) else "random"
    try:
        with tempfile.TemporaryDirectory() as folder, stage_at(Path(folder), sessions) as bench:
            return {"weights": weights} | {"sft": sft, "grpo": grpo}[training](bench, size, chosen)
    except Exception as error:
        traceback.print_exc()
        why = "out of memory" if "OutOfMemory" in type(error).__name__ else f"{type(error).__name__}: {error}"[:200]
        return {"failed": why}


if __name__ == "__main__":
    main()
