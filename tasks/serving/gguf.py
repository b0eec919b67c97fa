"""Files for llama.cpp, made by its own converter and quantizer.

In: a checkpoint's folder. Out: a GGUF file in 16 bits or quantized, whole or not at all.
"""

import errno
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apprentice.envs.serving.child import child_command
from apprentice.tasks.artifacts.foreign.models import code_of
from apprentice.tasks.episodes.rendering import chat_format
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.safe_text import one_line
from apprentice.tasks.serving.engine import INSTALL, llama_cpp_file
from apprentice.tasks.serving.to_gguf import NO_MERGES, UNKNOWN_SPLIT

CONVERTER, QUANTIZER, SERVER = "convert_hf_to_gguf.py", "llama-quantize", "llama-server"
FULL = "f16"
"""The form that the converter writes, and from which the quantizer makes the others."""
FULL_DISK = "no space left on device"
SPARE = 1.1
"""Bytes of a file that are asked of the disk, per byte that its weights take."""


def check_tools(forms: Sequence[str]) -> None:
    """Raises Stop for a program of llama.cpp that is missing, and for a package that its converter needs."""
    needed = [SERVER, CONVERTER, *([QUANTIZER] if set(forms) - {FULL} else [])]
    if missing := [each for each in needed if llama_cpp_file(each) is None]:
        raise Stop(
            f"llama.cpp's {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not found.",
            INSTALL["llama.cpp"],
        )
    if importlib.util.find_spec("sentencepiece") is None:
        raise Stop(
            "llama.cpp's converter needs the package sentencepiece, which is not installed.",
            "pip install 'openenv-apprentice[gguf]'",
        )


def build() -> str:
    """What llama-server says of its version, on one line."""
    done = subprocess.run([str(llama_cpp_file(SERVER)), "--version"], capture_output=True, text=True, timeout=60)
    lines = (done.stdout + done.stderr).splitlines()
    return next((one_line(line) for line in lines if line.startswith("version")), "version unknown")


def check_exportable(checkpoint: Path, tokenizer: Any, called: str) -> None:
    """Raises Stop for a checkpoint that llama.cpp cannot serve as it was trained.

    Args:
        called: What to call it.
    """
    why = _why_not(checkpoint, tokenizer)
    if why:
        raise Stop(
            f"{called} cannot be exported: {why}.",
            "docs/students.md lists the students; serve this one with `apprentice serve` and --engine transformers.",
        )


def _why_not(checkpoint: Path, tokenizer: Any) -> str:
    if not any(checkpoint.glob("*.safetensors")):
        return "its weights are not here"
    if source := code_of(checkpoint):
        return f"it runs Python code of {source}, which llama.cpp does not have"
    if not tokenizer.chat_template:
        return "it has no chat template"
    if not chat_format(tokenizer).arguments:
        return "its chat template is unknown: no parser reads its calls"
    file = checkpoint / "tokenizer.json"
    model = json.loads(file.read_text())["model"] if file.exists() else {}
    if model.get("type") == "BPE" and not model.get("merges"):
        return NO_MERGES
    return ""


def convert(checkpoint: Path, to: Path, called: str) -> None:
    """Writes a checkpoint as GGUF in 16 bits. Raises Stop for a model that llama.cpp's converter does not know."""
    weights = sum(each.stat().st_size for each in checkpoint.glob("*.safetensors"))
    words = [str(llama_cpp_file(CONVERTER)), str(checkpoint)]
    _write(lambda file: child_command("apprentice.tasks.serving.to_gguf", *words, str(file)), to, weights // 2, called)


def quantize(full: Path, to: Path, form: str, called: str) -> None:
    """Writes a GGUF file in another form, such as q4_k_m. Raises Stop."""
    program = str(llama_cpp_file(QUANTIZER))
    share = 0.6 if form.startswith("q8") else 0.4
    _write(lambda file: [program, str(full), str(file), form.upper()], to, int(full.stat().st_size * share), called)


def _write(command: Any, to: Path, size: int, called: str) -> None:
    """Runs what writes a file under another name beside it, and renames it once it is whole.

    Args:
        command: The words of the command, given that name.
        size: Bytes that the file will have, about.
    """
    if to.exists():
        return
    part = to.with_name(f".{to.name}.part")
    if shutil.disk_usage(to.parent).free < (needed := int(size * SPARE)):
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}; {needed / 1e6:,.0f} MB are needed", str(to.parent))
    try:
        done = subprocess.run(command(part), capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
        if done.returncode or not part.exists():
            _explain(done.stdout + done.stderr, to.name, called)
        os.replace(part, to)
    finally:
        part.unlink(missing_ok=True)


def _explain(printed: str, name: str, called: str) -> None:
    """Raises what a converter's or a quantizer's output means."""
    if FULL_DISK in printed.lower():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
    lines = [one_line(line) for line in printed.splitlines() if line.strip()]
    last = next((line for line in reversed(lines)), "it printed nothing")
    if "is not supported" in printed or UNKNOWN_SPLIT in printed:
        why = next(line for line in reversed(lines) if "is not supported" in line or UNKNOWN_SPLIT in line)
        raise Stop(
            f"{called} cannot be exported: llama.cpp's converter says: {why[-300:]}.",
            "Serve it with `apprentice serve` and --engine transformers, or use a newer llama.cpp (LLAMA_CPP).",
        )
    raise Stop(f"llama.cpp wrote no {name}: {last[-300:]}.", "Check that its programs are of one version (LLAMA_CPP).")
