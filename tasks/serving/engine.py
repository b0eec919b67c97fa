"""Runs the server of an engine (transformers, vLLM, llama.cpp) for a model as a child process.

In: a model's folder or its GGUF file, and how many requests at once. Out: a server on 127.0.0.1 that ends with this
process, and the name by which it calls the model.
"""

import importlib.util
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.envs.serving.child import child_command
from apprentice.envs.serving.health import State, when_ready
from apprentice.envs.serving.process import last_line
from apprentice.tasks.models.tokenizer import commands, switches, vllm_parser
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.serving.names import EngineName as EngineName

PREFERRED: tuple[EngineName, ...] = ("vllm", "transformers")
"""Of the engines that read a checkpoint as it is. llama.cpp, which reads a converted one, is chosen by name."""
PATIENCE = 600.0
"""Seconds until an engine must answer: vLLM compiles first."""
INSTALL = {
    "transformers": "Install what its server needs: pip install 'transformers[serving]'.",
    "vllm": "Install it: pip install 'openenv-apprentice[vllm]', see deployments/docker/gpu.Dockerfile.",
    "llama.cpp": (
        "Install llama.cpp, such as by `brew install llama.cpp` or `make build/llamacpp/ready` in a checkout, and put "
        "its programs on PATH or their folder into LLAMA_CPP."
    ),
}
PORT = ("--port", "{port}")
LLAMA_CPP = "LLAMA_CPP"
"""The variable that names a folder of llama.cpp: its programs, its source, or a build of it."""
WITHIN = ("", "bin", "build/bin", "out/bin", "source/llama.cpp", "llama.cpp")
"""Where the programs and the converter are within that folder."""


class Launch(NamedTuple):
    """How a server is started.

    Attributes:
        words: The command, with {port} for its port.
        model: What its requests call the model.
        thinks: Whether the model writes thoughts: its template sets its switch, and a parser reads the request's.
    """

    words: list[str]
    model: str
    thinks: bool = False


def engine_for(wanted: EngineName | None) -> EngineName:
    """The wanted engine, or the first one that is installed. Raises Stop, with what to install."""
    installed: list[EngineName] = [each for each in PREFERRED if is_installed(each)]
    chosen: EngineName = wanted or (installed[0] if installed else "transformers")
    if not is_installed(chosen):
        raise Stop(f"The engine {chosen} is not installed.", INSTALL[chosen])
    return chosen


def is_installed(engine: EngineName) -> bool:
    """Whether an engine's server can be started here."""
    if engine == "llama.cpp":
        return llama_cpp_file("llama-server") is not None
    packages = {"transformers": ("uvicorn", "fastapi", "openai"), "vllm": ("vllm",)}[engine]
    return all(importlib.util.find_spec(each) for each in packages)


def llama_cpp_file(name: str) -> Path | None:
    """A program of llama.cpp, or its converter; None where it is not found."""
    roots = [Path(os.environ[LLAMA_CPP]).expanduser()] if os.environ.get(LLAMA_CPP) else []
    found = (root / part / name for root in roots for part in WITHIN)
    named = next((each.absolute() for each in found if each.is_file()), None)
    if named is not None:
        return named
    on_path = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    return Path(on_path) if on_path else None


def launch(engine: EngineName, model: Path, template: str, sessions: int, context: int) -> Launch:
    """How an engine serves a model, as its card says.

    Args:
        model: The checkpoint's folder; for llama.cpp the GGUF file.
        template: The chat template's text.
        sessions: Requests at once.
        context: Tokens of one request, prompt and answer.

    Raises Stop where the engine does not read the template's calls.
    """
    if engine == "llama.cpp":
        return Launch(
            llama_server(str(llama_cpp_file("llama-server")), str(model), template, sessions, context), "student"
        )
    if engine == "vllm" and not vllm_parser(template):
        raise Stop("vLLM has no parser for the calls of this model's template.", "Choose --engine transformers.")
    spoken = {shlex.split(each)[0]: shlex.split(each) for each in commands(template, str(model), None)}
    options = spoken[engine][3:]  # after the program, "serve" and the model
    if engine == "vllm":
        words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *options]
        return Launch([*words, *PORT, "--max-model-len", str(context), "--max-num-seqs", str(sessions)], "student")
    import torch

    words = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model), *options, *PORT]
    return Launch(words if torch.cuda.is_available() else [*words, "--dtype", "float32"], str(model))


def llama_server(
    program: str, file: str, template: str, sessions: int, context: int, port: str = "{port}"
) -> list[str]:
    """llama-server's command: the file's own template, one sampler (the temperature), as a checkpoint is evaluated."""
    words = [program, "--model", file, "--alias", "student", "--host", "127.0.0.1", "--port", port, "--jinja"]
    words += ["--parallel", str(sessions), "--ctx-size", str(sessions * context), "--samplers", "temperature"]
    if given := switches(template):
        words += ["--chat-template-kwargs", shlex.split(given)[0]]
    return words


class EngineFailed(Exception):
    """The engine's server exited, or did not answer in time; its text says how it ended."""


class Engine:
    """A running server. It ends with this process, however that ends.

    Attributes:
        url: Its address.
        model: What its requests call the model.
        thinks: Whether the model writes thoughts.
    """

    def __init__(self, how: Launch):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.model, self.thinks = how.model, how.thinks
        words = [word.replace("{port}", str(port)) for word in how.words]
        self._program, self._end = words[0], ""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        self._process = subprocess.Popen(
            child_command("apprentice.envs.serving.command", *words),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C reaches only the parent
            env=os.environ | {"HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1")},
        )

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self, patience: float = PATIENCE) -> None:
        """Returns once it answers. Raises EngineFailed."""

        def state(answers: bool) -> State:
            return "ready" if answers and self.is_alive else "starting" if self.is_alive else "exited"

        if (found := when_ready(self.url, state, patience)) != "ready":
            raise EngineFailed(
                self.end() if found == "exited" else f"{self._called} did not answer in {patience:.0f} s"
            )

    def end(self) -> str:
        """How it ended, with the last line that it printed; also once it is stopped."""
        return self._end or f"{self._called} exited with code {self._process.poll()}{last_line(self._log)}"

    def memory(self) -> int:
        """Resident bytes of the server's processes."""
        import psutil

        found = psutil.Process(self._process.pid).children(recursive=True)
        return sum(each.memory_info().rss for each in found)

    def stop(self) -> None:
        """Ends it. May be called again."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
            self._process.wait()
            self._end = self.end()
            self._log.close()

    @property
    def _called(self) -> str:
        return Path(self._program).name


def post(url: str, body: dict[str, Any], timeout: float = 600.0) -> dict[str, Any]:
    """What a server of this machine answers to JSON. Raises EngineFailed."""
    import httpx

    try:
        answer = httpx.post(url, json=body, timeout=timeout, trust_env=False)
        answer.raise_for_status()
        return answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise EngineFailed(f"{url} failed: {error}") from error
