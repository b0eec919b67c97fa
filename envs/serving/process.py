"""Runs a local server as a child process that never outlives its parent.

In: a module that calls `serve`. Out: the server's URL inside the `with` block.
Environment servers and the scripted teacher listen on 127.0.0.1 and a free port. The child exits when its standard
input closes, so it ends even if the parent is killed with SIGKILL.

Runs an environment's server in a local Docker container.

In: an image. Out: the server's URL inside the `with` block; the container is removed afterwards.
The server is published on 127.0.0.1 only, and runs as an ordinary user with bounds on memory and processes. A label
names the process that started the container. If that process was killed, the next start of a container removes it.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, Any, Literal
from uuid import uuid4

import tenacity

from apprentice.envs.defaults import debugging, old_objects_ignored
from apprentice.envs.serving.child import child_command
from apprentice.envs.wire.server import ServerFailed as ServerFailed

log = logging.getLogger(__name__)
SERVES_AT = "apprentice serves at "
"""What a server prints before its address. Other lines are those of modules that it imported."""


@contextmanager
def local_server(module: str, *arguments: str, hash_seed: int = 0) -> Iterator[str]:
    """Run a module that calls `serve` until the block ends, and yield its URL. Raises ServerFailed.

    Args:
        hash_seed: PYTHONHASHSEED; the same for all servers, since a question that is drawn from a set depends on it.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            child_command(module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if debugging() else errors,
            text=True,
            errors="replace",
            env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
            start_new_session=True,  # Ctrl-C reaches only the parent; the child ends with this block
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url, printed = _address(process.stdout)
            if not url:
                code = process.wait()
                why = last_line(errors) or (f": {printed[-1][:300]}" if printed else "")
                raise ServerFailed(f"{module} exited with code {code}{why}")
            yield url
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _address(output: IO[str]) -> tuple[str, list[str]]:
    """Return the address that a server printed, or an empty text at the end of its output, and its other lines."""
    printed = []
    for line in output:
        before, marked, url = line.partition(SERVES_AT)
        if before.strip():
            log.info("A server printed: %s", before.strip())
            printed.append(before.strip())
        if marked:
            return url.strip(), printed
    return "", printed


def last_line(errors: IO[bytes]) -> str:
    """Return the last line that a server wrote to standard error: the exception that ended it."""
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - 65536))
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines()]
    messages = [line for line in lines if line and not line.startswith("ERROR:")]  # uvicorn logs its exit last
    return f": {messages[-1][:300]}" if messages else ""


def serve(app: Any) -> None:
    """Serve an ASGI application on 127.0.0.1 until standard input closes. Called in the child process.

    Ignores signals: terminals, systemd and schedulers signal all processes of a run at once, and the parent decides.
    """
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    threading.Thread(target=leave_with_parent, daemon=True).start()

    class Child(uvicorn.Server):
        def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
            return nullcontext()

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
                print(f"{SERVES_AT}http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
                os.dup2(2, 1)  # nobody reads what an environment prints, and a full pipe would stop it

    with old_objects_ignored():
        Child(server_settings(app, log_level="error")).run(sockets=[listener])
    sys.exit(3)  # reached only if it could not start


def server_settings(app: Any, log_level: str = "critical") -> Any:
    import uvicorn

    return uvicorn.Config(
        app,
        log_level=log_level,
        access_log=False,
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=2,  # sessions may still be open
    )


def leave_with_parent() -> None:
    """Exit this process when its standard input closes. Runs in a thread of the child process."""
    sys.stdin.read()
    os._exit(0)


PORT = 8000
"""The port on which OpenEnv's images listen."""
USER = "1000:1000"
"""User and group of the server, also if its image names others."""
MEMORY = "8g"
"""Memory of a container, which has no swap besides: a browser's session takes about 0.1 GB, other sessions less."""
PROCESSES = 4096
"""Processes and threads of a container: a browser has about 100."""
OWNER = "apprentice.owner"
"""The label with the host and the process that started a container, as the tag of its flow run has them."""
LOOK_S = 0.2
"""Seconds between two checks of a container that does not answer yet."""

State = Literal["ready", "starting", "exited"]


class ContainerFailed(Exception):
    """Docker is not available, or the image's server did not start."""


@contextmanager
def container(image: str, sessions: int, patience: float) -> Iterator[str]:
    """Run the image until the block ends, and yield its URL. Removes containers of killed processes first.

    Args:
        sessions: Passed to the server as MAX_CONCURRENT_ENVS; an image may ignore it.
        patience: Seconds to wait for a server that does not answer.

    Raises ContainerFailed.
    """
    if not _remove_leftovers():
        raise ContainerFailed(f"Docker does not answer here, and {image} needs it (`docker ps` fails)")
    name = f"apprentice-{uuid4().hex[:12]}"
    try:
        yield _started(image, name, sessions, patience)
    finally:
        _remove(name)


def _started(image: str, name: str, sessions: int, patience: float) -> str:
    started = _docker(
        *("run", "--detach", "--name", name, "--label", f"{OWNER}={socket.gethostname()}:{os.getpid()}"),
        *("--publish", f"127.0.0.1::{PORT}", "--user", USER, "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--memory", MEMORY, "--memory-swap", MEMORY),
        *("--pids-limit", str(PROCESSES), "--env", f"MAX_CONCURRENT_ENVS={sessions}", image),
    )
    if started.returncode:
        raise ContainerFailed(f"the image {image} does not start: {_last_words(started)}")
    url = f"http://{_docker('port', name, f'{PORT}/tcp').stdout.strip()}"
    if (state := when_ready(url, lambda answers: _state(name, answers), patience)) == "ready":
        return url
    how = "exited at startup" if state == "exited" else f"did not answer for {patience:.0f} s"
    raise ContainerFailed(f"the server of {image} {how}: {_last_words(_docker('logs', '--tail', '5', name))}")


def _state(name: str, answers: bool) -> State:
    if _docker("inspect", "--format", "{{.State.Running}}", name).stdout.strip() != "true":
        return "exited"
    return "ready" if answers else "starting"


def when_ready(url: str, state: Callable[[bool], State], patience: float) -> State:
    """Return `ready` once a server answers; what it is where it exited, or does not answer for `patience` seconds.

    Args:
        state: Is told whether /health answers.
    """
    import httpx

    def look() -> State:
        try:
            answer = httpx.get(f"{url}/health", timeout=2, trust_env=False)  # not through a proxy
        except httpx.TransportError:
            return state(False)
        return state(answer.is_success)

    return tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda found: found == "starting"),
        wait=tenacity.wait_fixed(LOOK_S),
        stop=tenacity.stop_after_delay(patience),
        retry_error_callback=lambda _: "starting",
    )(look)


def _remove_leftovers() -> bool:
    """Remove the containers of this host's dead processes; return False if Docker does not answer."""
    columns = f'{{{{.Names}}}} {{{{.Label "{OWNER}"}}}}'
    listed = _docker("ps", "--all", "--filter", f"label={OWNER}", "--format", columns)
    for line in listed.stdout.splitlines():
        name, _, owner = line.partition(" ")
        if _is_dead(owner):
            _remove(name)
    return listed.returncode == 0


def _is_dead(owner: str) -> bool:
    """Return whether a process of this host has ended; a number that another process has got counts as running."""
    host, _, number = owner.rpartition(":")
    if host != socket.gethostname() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it runs, as another user
        return False
    return False


def _remove(name: str) -> None:
    _docker("rm", "--force", "--volumes", name)


def _docker(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `docker …` to its end, also if it fails: the container may not exist any more."""
    command = ["docker", *arguments]
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only this process, which then removes the container
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def _last_words(done: "subprocess.CompletedProcess[str]") -> str:
    """Return what a command said last: an exception, rather than how to get help."""
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    return next((line for line in reversed(lines) if line and "docker run --help" not in line), "it printed nothing")
