"""What a training is made of is made on a toy model before anything is bought: config, optimizer, scheduler, a step.

In: the settings, the student's tokenizer, the tools. Out: nothing; Stop with what transformers and TRL refuse. Their
configs accept some arguments that the trainer, the scheduler, the dataset or the loss then refuse, and schedulers that
need an argument which nobody gave. With arguments of the recipe's own a step is made, too.

Checks what a chat template makes of whole episodes, before anything is bought or trained.

How many tokens of a completion the model's context has room for.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from apprentice.envs.defaults import failed_import
from apprentice.envs.player import Player
from apprentice.tasks.engine.processes import forget_launcher
from apprentice.tasks.episodes.episode import Message, prompt, turn_of
from apprentice.tasks.episodes.rendering import CLOSING, chat_format, parse, prompt_ids, row_ids, training_row
from apprentice.tasks.models import trl_internals
from apprentice.tasks.models.checkpoints import context_length
from apprentice.tasks.models.student_model import built_model
from apprentice.tasks.models.tokenizer import CHOOSE, question_too_long
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop, broken_package
from apprentice.tasks.reporting.safe_text import one_line
from apprentice.tasks.settings.spec import BuiltStudent
from apprentice.tasks.settings.training import GrpoSpec, SftSpec, TrainerSpec
from apprentice.tasks.settings.trl_arguments import config_of
from apprentice.tasks.training.trainer import on_one_gpu, training_dataset

REPLY = "reply-7f3a"
EXAMPLES: dict[str, Any] = {
    "string": "-57",  # a parser that guesses types makes a number of it
    "integer": 7,
    "number": 1.5,
    "boolean": False,
    "array": [],
    "object": {},
    "null": None,
}


def check_template(model: str, tokenizer: Any, environment: Player) -> None:
    """Raises Stop when a student with this chat template would learn another format than it is evaluated in."""
    tools = environment.schemas
    if fault := fault_of(tokenizer, tools):
        raise Stop(f"The chat template of {model} {fault}", CHOOSE)


def fault_of(tokenizer: Any, tools: list[dict[str, Any]]) -> str:
    """The fault, as the end of a sentence about the template; empty without one."""
    for tool in tools:
        try:
            if fault := _fault(tokenizer, tool["function"], tools):
                return fault
        except Exception as error:  # a template may raise anything
            if failed_import(error):
                raise
            return f"fails on an episode with calls: {' '.join(str(error).split())[:200]}"
    return ""


def example_episode(function: dict[str, Any]) -> list[Message]:
    """An episode with two calls of a tool, each with its reply."""
    given = {name: _example(schema) for name, schema in function["parameters"]["properties"].items()}
    call_turn = turn_of(function["name"], given)
    reply = {"role": "tool", "name": function["name"], "content": REPLY}
    opening = [{"role": "system", "content": "system"}, {"role": "user", "content": "user"}]
    return [*opening, call_turn, reply, call_turn, reply]


def _fault(tokenizer: Any, function: dict[str, Any], tools: list[dict[str, Any]]) -> str:
    messages = example_episode(function)
    *_, call_turn, reply = messages
    called = call_turn["tool_calls"][0]["function"]
    ids = row_ids(tokenizer, training_row(messages, tools))
    if tokenizer.decode(ids).count(REPLY) != 2:
        return "omits the tools' replies."
    for place in (2, 4, 6):
        prefix, turn = _turn(tokenizer, [*messages, CLOSING], tools, place)
        if ids[: len(prefix) + len(turn)] != prefix + turn:
            return "renders earlier turns differently once others follow, so SFT and GRPO would have other token ids."
        if place == 6:
            return ""
        parsed = parse(tokenizer, turn, prefix, tools).get("tool_calls") or []
        if [call["function"] for call in parsed] != [called]:
            read = ", ".join(_call(call["function"]) for call in parsed) or "no call"
            return f"renders the call {_call(called)} so that TRL's parser reads {read}."
        if (again := _concatenated(tokenizer, prefix, turn, [reply])) != ids[: len(again)]:
            return "renders a tool's reply otherwise than TRL's GRPO inserts it, so SFT would have other token ids."
    return ""


def _turn(
    tokenizer: Any, messages: list[Message], tools: list[dict[str, Any]], place: int
) -> tuple[list[int], list[int]]:
    """The prompt of an assistant's turn, and what the template renders of the turn."""
    prefix = prompt_ids(tokenizer, messages[:place], tools)
    upto = training_row(messages[: place + 1], tools)
    upto["messages"] = upto["messages"][:-1]  # without the closing turn
    return prefix, row_ids(tokenizer, upto)[len(prefix) :]


def _concatenated(tokenizer: Any, prefix: list[int], turn: list[int], replies: list[Message]) -> list[int]:
    """The ids of GRPO after a turn: the model stops at its end token, TRL inserts the replies."""
    end = chat_format(tokenizer).call_end
    generated = turn[: turn.index(end) + 1] if end in turn else turn
    return prefix + generated + trl_internals.reply_ids(tokenizer, replies)


def _example(schema: dict[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    types = schema.get("type", "string")
    return EXAMPLES[types if isinstance(types, str) else types[0]]


def _call(function: dict[str, Any]) -> str:
    return f"{function['name']}({function['arguments']!r})"[:120]


TOY = BuiltStudent(hidden_size=16, intermediate_size=16, layers=1, heads=1, max_positions=4096)


NEEDED: dict[str, dict[str, Any]] = {
    "warmup_stable_decay": {"num_decay_steps": 10},
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
}
"""By scheduler of transformers, an example of the arguments without which it cannot be made."""
STEPS = 200
"""Steps for which a schedule's learning rates are computed where a training has more."""
REFUSALS = (
    *(ValueError, TypeError, KeyError, AttributeError, AssertionError),
    *(RuntimeError, ArithmeticError, ImportError, OSError),
)
"""What libraries raise for settings that they do not take, and for packages that they need."""


def check_scheduler(spec: TrainerSpec) -> None:
    """Raises Stop if transformers cannot make the section's scheduler, or one of its learning rates."""
    import torch
    from transformers import get_scheduler

    given = spec.args.get("lr_scheduler_kwargs") or {}
    steps = min(spec.max_steps, STEPS) if isinstance(spec, GrpoSpec) else STEPS
    warmup = spec.warmup_steps if spec.warmup_steps < steps else steps // 10
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=spec.learning_rate)
    try:
        given = json.loads(given) if isinstance(given, str) else given
        scheduler = get_scheduler(spec.scheduler, optimizer, warmup, steps, given)
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
    except REFUSALS as error:
        raise _refused_scheduler(spec, given, error) from error


def _refused_scheduler(spec: TrainerSpec, given: Any, error: Exception) -> Stop:
    name, field = f"{spec.section}.scheduler", f"{spec.section}.args"
    said = one_line(str(error))[:200].rstrip(".")
    missing = NEEDED.get(spec.scheduler, {})
    if missing and not given:
        example = ", ".join(f"{argument}: {value}" for argument, value in missing.items())
        return Stop(
            f"{name}: {spec.scheduler} needs {' and '.join(missing)}, which is not given: {said}.",
            f"Give it, such as {field}: {{lr_scheduler_kwargs: {{{example}}}}}, or choose another {name}.",
        )
    return Stop(
        f"{name}: {spec.scheduler} refuses {field} (lr_scheduler_kwargs: {json.dumps(given)[:100]}): {said}.",
        "Correct or remove the argument"
        + (f"; it needs {' and '.join(missing)}, or what stands for it." if missing else "."),
    )


def check_trainer(spec: TrainerSpec, own: dict[str, Any], tokenizer: Any) -> None:
    """Raises Stop if TRL's config, the optimizer or the scheduler of a training cannot be made.

    Args:
        own: The arguments of TRL's config that the stage gives it.
    """
    given, trainer = spec.args, f"{spec.section.upper()}Trainer"
    forget_launcher()
    try:
        with _made_config(spec, own, given) as config:
            _make_optimizer(config, trainer, tokenizer)
    except REFUSALS as error:
        if stop := broken_package(error):
            raise stop from error
        what = f"with {spec.section}.args ({', '.join(given)})" if given else f"with the section {spec.section}"
        raise Stop(
            f"TRL's {trainer} cannot be made {what}: {one_line(str(error))[:300].rstrip('.')}.",
            "Install what it names, or change the setting."
            if isinstance(error, ImportError)
            else "Change the setting.",
        ) from error


@contextmanager
def _made_config(spec: TrainerSpec, own: dict[str, Any], given: dict[str, Any]) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        apart = {
            "output_dir": folder,
            "report_to": "none",
            "use_liger_kernel": False,
        }  # Liger changes the model's class
        yield on_one_gpu(config_of(spec.section, own | apart, given))


def _make_optimizer(config: Any, trainer: str, tokenizer: Any) -> None:
    import trl
    from transformers import Trainer

    getattr(trl, trainer)  # imports what it needs
    model = built_model(TOY, tokenizer, seed=0)
    nothing: Any = []
    Trainer(model=model, args=config, eval_dataset=nothing).create_optimizer_and_scheduler(STEPS)


def check_sft_arguments(spec: SftSpec, tokenizer: Any, tools: list[dict[str, Any]]) -> None:
    """Raises Stop if TRL makes a step without `sft.args`, and cannot make one with them."""
    _check(spec, lambda given: _sft_step(spec, given, tokenizer, tools))


def check_grpo_arguments(spec: GrpoSpec, tokenizer: Any) -> None:
    """Raises Stop if TRL makes a step without `grpo.args`, and cannot make one with them; transformers generates."""
    _check(spec, lambda given: _grpo_step(spec, given, tokenizer))


def _check(spec: TrainerSpec, step: Callable[[dict[str, Any]], None]) -> None:
    section, given = spec.section, spec.args
    forget_launcher()
    try:
        step(given)
    except REFUSALS as error:
        if stop := broken_package(error):
            raise stop from error
        step({})  # raises what is no matter of the arguments
        raise Stop(
            f"TRL's {section.upper()}Trainer refuses {section}.args ({', '.join(given)}): {one_line(str(error))[:300]}",
            "Correct or remove the argument.",
        ) from error


def _sft_step(spec: SftSpec, given: dict[str, Any], tokenizer: Any, tools: list[dict[str, Any]]) -> None:
    from trl import SFTTrainer

    rows = training_dataset(tokenizer, [training_row(example_episode(tools[0]["function"]), tools)] * 2)
    with _config(spec, {"per_device_train_batch_size": 1, "max_length": TOY.max_positions}, given) as config:
        model = built_model(TOY, tokenizer, seed=0)
        SFTTrainer(model=model, processing_class=tokenizer, train_dataset=rows, args=config).train()


def _grpo_step(spec: GrpoSpec, given: dict[str, Any], tokenizer: Any) -> None:
    from datasets import Dataset
    from trl import GRPOTrainer

    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "user"}]}] * 2)
    own = {"per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 2, "beta": spec.beta}
    with _config(spec, own, given) as config:
        GRPOTrainer(
            model=built_model(TOY, tokenizer, seed=0),
            processing_class=tokenizer,
            train_dataset=rows,
            reward_funcs=lambda prompts, **_: [float(place) for place in range(len(prompts))],
            args=config,
        ).train()


@contextmanager
def _config(spec: TrainerSpec, own: dict[str, Any], given: dict[str, Any]) -> Iterator[Any]:
    """Yields TRL's config of one step."""
    import torch

    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        own = own | {"output_dir": folder, "lr_scheduler_type": spec.scheduler, "disable_tqdm": True}
        own |= {"save_strategy": "no", "report_to": "none", "use_cpu": not torch.cuda.is_available()}
        config = on_one_gpu(config_of(spec.section, own, given))
        config.max_steps = 1
        yield config


LONGEST = 16
"""Questions, those of the most letters, whose tokens are counted."""


def within_context(spec: GrpoSpec, folder: Path, tokenizer: Any, instance: Player, used: list[dict[str, Any]]) -> int:
    """Return the tokens of a completion that the model's context has room for after the longest questions.

    Raises Stop where a question alone fills it.
    """
    longest = sorted(used, key=lambda row: len(row["question"]))[-LONGEST:]
    lengths = [
        len(prompt_ids(tokenizer, prompt(part, row["question"]), part.schemas))
        for row in longest
        for part in [instance.part(row["seed"])]
    ]
    context = context_length(json.loads((folder / "config.json").read_text()))
    room = context - max(lengths)
    if room < 1:
        raise question_too_long(max(lengths), "the model", context)
    if room < spec.max_completion_length:
        announce.warn(
            f"The longest question takes {max(lengths)} of the model's {context} tokens: completions have {room}, and "
            f"grpo.max_completion_length allows {spec.max_completion_length}."
        )
    return min(room, spec.max_completion_length)
