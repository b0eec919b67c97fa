"""The model that a run begins with: one of the Hub, one in a folder, or a small Qwen3 built from a seed.

In: a `StudentSpec`. Out: it pinned, a Hub model by its commit and a folder by the digest of its content; configuration
and prepared tokenizer, for a folder also the weights, because its files may change later. A built student is pretrained
in less than a minute, for what a base model from the Hub brings along.
"""

import json
import random
import re
import shutil
import string
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.foreign.models import (
    PATIENCE,
    WEIGHTS,
    brings_code,
    check_files,
    forget_code,
    is_repository,
    name_code,
    readable,
    source_of,
)
from apprentice.tasks.artifacts.hub_client import ask
from apprentice.tasks.artifacts.store_files import digest_of, known_sha256_of
from apprentice.tasks.episodes.thinking import thinking_in
from apprentice.tasks.files.question_lists import LEARNED
from apprentice.tasks.models.configuration import auto_class, forget_the_network
from apprentice.tasks.models.tokenizer import prepared, trl_template
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import BuiltStudent, StudentSpec

TEMPLATE = "chat_template.jinja"
"""The file in which transformers saves a tokenizer's chat template."""
NAMED_TEMPLATES = "additional_chat_templates"
"""Folder in which transformers saves a tokenizer's further chat templates."""
READ = (
    *("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model", "*.tiktoken"),
    *("chat_template*", f"{NAMED_TEMPLATES}/*.jinja", "*processor_config.json", "adapter_config.json", LEARNED),
)
"""The files of a folder that loading reads, and learned.jsonl."""
PICKLED = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
COMMIT = re.compile("[0-9a-f]{40}")


def pinned(spec: StudentSpec) -> StudentSpec:
    """The student, pinned by content or commit. Raises Stop when it does not exist."""
    if spec.model is None:
        return spec
    folder = Path(spec.model).expanduser()
    if folder.is_dir():
        return _as_folder(spec, folder.absolute())
    if spec.content is not None or not is_repository(spec.model):
        raise Stop(f"There is no folder {folder.absolute()} to load the student from.", "Check student.model.")
    assert spec.revision is not None
    if COMMIT.fullmatch(spec.revision):
        return spec
    return spec.model_copy(update={"revision": _commit_of(spec.model, spec.revision)})


def as_its_template_says(spec: StudentSpec) -> StudentSpec:
    """The pinned student, which thinks as its own chat template says where its settings do not say it."""
    if spec.model is None or spec.thinking is not None:
        return spec
    template = Path(spec.model) / TEMPLATE if spec.content else _downloaded_template(spec)
    found = thinking_in(template.read_text(encoding="utf-8")) if template and template.exists() else None
    return spec.model_copy(update={"thinking": found})


def _downloaded_template(spec: StudentSpec) -> Path | None:
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    model = str(spec.model)
    if constants.HF_HUB_OFFLINE:
        kept = try_to_load_from_cache(model, TEMPLATE, revision=spec.revision)
        return Path(kept) if isinstance(kept, str) else None
    try:
        found = ask(lambda: hf_hub_download(model, TEMPLATE, revision=spec.revision), model.partition("/")[0], PATIENCE)
    except LocalEntryNotFoundError:  # the client's word for a Hub that is away
        raise
    except EntryNotFoundError:
        return None
    return Path(found)


def files_of(folder: Path, spec: StudentSpec) -> list[Path]:
    """The files that loading a folder reads, given what the recipe trusts."""
    patterns = (*READ, *(["*.py"] if spec.trust_remote_code else []), *([] if spec.safetensors_only else PICKLED))
    return sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})


def copy_of(spec: StudentSpec, to: Path) -> None:
    """Copies the files that loading reads. Raises Stop when the folder no longer matches the pinned content."""
    assert spec.model is not None
    for file in files_of(Path(spec.model), spec):
        target = to / file.relative_to(spec.model)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
    if _content(to, spec) != spec.content:
        raise Stop(f"{spec.model} changed while it was read.", "Run again when nothing writes to it.")


def _as_folder(spec: StudentSpec, folder: Path) -> StudentSpec:
    if spec.revision is not None:
        raise Stop(
            f"{folder} is a folder, which is pinned by its content and has no revision.", "Remove student.revision."
        )
    if not files_of(folder, spec):
        raise Stop(f"{folder} contains no model.", "Check student.model.")
    content = _content(folder, spec)
    if spec.content not in (None, content):
        raise Stop(
            f"{folder} has the content {content[:12]}, not {spec.content[:12]}.",  # type: ignore[index]
            "Remove student.content to use the folder as it is now.",
        )
    return spec.model_copy(update={"model": str(folder), "content": content})


def _content(folder: Path, spec: StudentSpec) -> str:
    return digest_of({file.relative_to(folder).as_posix(): known_sha256_of(file) for file in files_of(folder, spec)})


def _commit_of(model: str, revision: str) -> str:
    """The commit that a branch or tag points to; offline, the commit of the last download."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if constants.HF_HUB_OFFLINE:
        kept = try_to_load_from_cache(model, "config.json", revision=revision)
        if not isinstance(kept, str):
            raise Stop(f"{model} at {revision} is not on this machine, and HF_HUB_OFFLINE is set.", "Unset it.")
        return Path(kept).parent.name
    try:
        found = ask(lambda: HfApi().model_info(model, revision=revision), model.partition("/")[0], PATIENCE)
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise Stop(
            f"The Hub has no model {model} at {revision}, or it needs permission.",
            "Check student.model and student.revision; for a private or gated model set HF_TOKEN.",
        ) from None
    assert found.sha is not None
    return found.sha


def from_model(spec: StudentSpec, out: Path) -> int:
    """Writes the student to `out`; returns its number of parameters.

    Raises Stop for a model whose custom code the recipe does not trust.
    """
    if spec.content:
        copy_of(spec, out)
    config, tokenizer = named_model(spec, out if spec.content else None)
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    shutil.rmtree(out / NAMED_TEMPLATES, ignore_errors=True)  # the one that renders tools was chosen
    forget_the_network(out / "tokenizer_config.json")
    if not spec.content:
        named = {"model": spec.model, "revision": spec.revision, "safetensors_only": spec.safetensors_only}
        (out / WEIGHTS).write_text(json.dumps(named))
    elif not spec.safetensors_only:
        _without_pickles(out, spec)
    if spec.trust_remote_code and brings_code(out):
        name_code(out, source_of(spec))
    else:
        forget_code(out)
    layers = without_weights(config, spec)
    check_rows(layers, tokenizer, str(spec.model))
    return layers.num_parameters()


def check_rows(model: Any, tokenizer: Any, called: str) -> None:
    """Raises Stop for a tokenizer whose texts have tokens that the model has no embedding for.

    A token that was added and that no text of the template holds does no harm.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    ends = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id)
    shown = (ident for text, ident in tokenizer.get_added_vocab().items() if text in str(tokenizer.chat_template))
    needed = 1 + max(tokenizer.vocab_size - 1, *(each for each in ends if each is not None), *shown)
    if rows < needed:
        raise Stop(
            f"{called} has {rows} embedding rows, and its tokenizer {needed} tokens.",
            "Add rows (model.resize_token_embeddings(len(tokenizer))), save the model, and name that folder in "
            "student.model.",
        )


def without_weights(config: Any, spec: StudentSpec) -> Any:
    """The model on the meta device: its layers without memory for their weights. Raises Stop."""
    import torch

    with torch.device("meta"):
        return auto_class(config, str(spec.model)).from_config(config, trust_remote_code=spec.trust_remote_code)


def named_model(spec: StudentSpec, copied: Path | None = None) -> tuple[Any, Any]:
    """The configuration and the prepared tokenizer.

    Raises Stop when the model does not exist, needs custom code that the recipe does not trust, or has a chat template
    that cannot be trained on.

    Args:
        copied: The copy of a local folder.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    assert spec.model is not None
    _check_weights(spec)
    where: Any = {"trust_remote_code": spec.trust_remote_code}
    if spec.content:
        check_files(copied or Path(spec.model), spec.model)
    else:
        where["revision"] = spec.revision
    with readable(spec.model), _code_refused(spec):
        config = AutoConfig.from_pretrained(copied or spec.model, **where)
        tokenizer = AutoTokenizer.from_pretrained(copied or spec.model, **where)
    at: Any = {"revision": spec.revision} if "revision" in where else {}
    with readable(f"generation_config.json of {spec.model}"), suppress(OSError):  # loading ignores one that is no JSON
        GenerationConfig.from_pretrained(copied or spec.model, **at)
    if spec.chat_template is not None:
        tokenizer.chat_template = trl_template(spec.chat_template, tokenizer)
    return config, prepared(tokenizer, spec.model, spec.thinking)


def _without_pickles(out: Path, spec: StudentSpec) -> None:
    from transformers import AutoConfig

    pickled = [*out.glob("pytorch_model*.bin"), *out.glob("pytorch_model.bin.index.json")]
    if pickled:
        with readable(out):
            where: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code}
            model = auto_class(AutoConfig.from_pretrained(out, **where), str(spec.model)).from_pretrained(
                out, dtype="auto", **where
            )
            model.save_pretrained(out)
    for file in pickled:
        file.unlink()


def check_downloaded(spec: StudentSpec) -> None:
    """Raises Stop if the Hub may not be asked for a model's weights, and this machine does not have them all."""
    from huggingface_hub import constants, try_to_load_from_cache

    if spec.model is None or spec.content or not is_repository(spec.model) or not constants.HF_HUB_OFFLINE:
        return

    def here(name: str) -> Path | None:
        found = try_to_load_from_cache(str(spec.model), name, revision=spec.revision)
        return Path(found) if isinstance(found, str) else None

    names = ["model.safetensors", *([] if spec.safetensors_only else ["pytorch_model.bin"])]
    if any(map(here, names)):
        return
    index = here("model.safetensors.index.json")
    shards = set(json.loads(index.read_text())["weight_map"].values()) if index else {names[0]}
    if missing := sorted(shard for shard in shards if here(shard) is None):
        raise Stop(
            f"{spec.model} has no {missing[0]} on this machine, and HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set.",
            f"Unset it, or download the model first: hf download {spec.model} --revision {spec.revision}.",
        )


def _check_weights(spec: StudentSpec) -> None:
    from huggingface_hub import constants, list_repo_files

    assert spec.model is not None
    folder = Path(spec.model)
    if not spec.content and constants.HF_HUB_OFFLINE:
        return  # offline, loading checks the cached files
    local = [file.name for file in folder.iterdir()] if spec.content else None
    files = local or list_repo_files(spec.model, revision=spec.revision)
    if spec.safetensors_only and not any(name.endswith(".safetensors") for name in files):
        raise Stop(
            f"{spec.model} has no weights in safetensors; loading pickled ones can run code.",
            "Choose a revision that has them, or set student.safetensors_only: false if you trust its author.",
        )


@contextmanager
def _code_refused(spec: StudentSpec) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise Stop(
            f"{source_of(spec)} needs Python code of its own repository.",
            "Read that code, then set student.trust_remote_code: true (or --trust-code); or choose a model that "
            "transformers supports.",
        ) from None


BATCH_SIZE = 64
LEARNING_RATE = 2e-3
ADAM_BETAS = (0.9, 0.98)
WARMUP_STEPS = 50
LETTERS = (2, 5)
"""Fewest and most letters of a string."""
BETWEEN = (3, 6)
"""Fewest and most tokens between a string and its repetition."""


def pretrain(model: Any, tokenizer: Any, steps: int, seed: int) -> None:
    """Trains on `steps` batches of random texts, which the seed draws."""
    import torch
    from transformers import get_linear_schedule_with_warmup

    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, ADAM_BETAS, weight_decay=0.1)
    schedule = get_linear_schedule_with_warmup(optimizer, WARMUP_STEPS, steps)
    model.train()
    with announce.progress("Pretraining steps", steps) as advance:
        for _ in range(steps):
            loss = model(**batch_of(tokenizer, draw)).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            advance(1)


def batch_of(tokenizer: Any, draw: random.Random) -> dict[str, Any]:
    """Token ids, attention mask and labels of BATCH_SIZE texts, padded on the right."""
    import torch

    def padded(rows: Iterable[list[int]], padding: int) -> Any:
        return torch.nn.utils.rnn.pad_sequence([*map(torch.tensor, rows)], batch_first=True, padding_value=padding)

    texts = [text_of(tokenizer, draw) for _ in range(BATCH_SIZE)]
    return {
        "input_ids": padded((ids for ids, _ in texts), tokenizer.pad_token_id),
        "attention_mask": padded(([1] * len(ids) for ids, _ in texts), 0),
        "labels": padded(([-100] * known + ids[known:] for ids, known in texts), -100),
    }


def text_of(tokenizer: Any, draw: random.Random) -> tuple[list[int], int]:
    """The token ids of a text, and how many come before the repetition: these are random, so they have no loss."""
    word = "".join(draw.choices(string.ascii_letters, k=draw.randint(*LETTERS)))
    padding, encode = tokenizer.pad_token_id, tokenizer.backend_tokenizer.encode  # a quarter of Transformers' own time
    template = [i for i in tokenizer.get_added_vocab().values() if i != padding]
    before = [draw.choice(template), *encode(word).ids, *draw.choices(template, k=draw.randint(*BETWEEN))]
    again = word if draw.random() < 0.5 else word[::-1]
    return [*before, *encode(again).ids, tokenizer.eos_token_id], len(before)


def built_layers(spec: BuiltStudent, tokenizer: Any) -> Any:
    """The layers of `built_model` on the meta device."""
    import torch

    with torch.device("meta"):
        return built_model(spec.model_copy(update={"pretraining_steps": 0}), tokenizer, seed=0)


def built_model(spec: BuiltStudent, tokenizer: Any, seed: int) -> Any:
    """A Qwen3 of these sizes with seeded random weights, pretrained where the settings say so."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        head_dim=spec.hidden_size // spec.heads,
        max_position_embeddings=spec.max_positions,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=spec.initializer_range,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    if spec.pretraining_steps:
        pretrain(model, tokenizer, spec.pretraining_steps, seed)
    return model
