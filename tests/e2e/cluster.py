"""A production in small: PostgreSQL, a Prefect server on it, and workers, as processes of this machine.

In: a folder. Out: what a person would have set up by hand, which tests then kill, stop and start again.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent


def until(what: str, holds: Callable[[], T], seconds: float = 180.0, every: float = 0.1) -> T:
    """Waits for a condition; returns what it gave."""
    end = time.monotonic() + seconds
    while not (value := holds()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(every)
    return value


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class Cluster:
    """Everything below one folder.

    Attributes:
        env: The environment of whoever talks to the server.
        store: The one folder that all workers share.
        worker_env: What workers that start from now on have in their environment besides.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.store = folder / "store"
        self.port = free_port()
        self._database = free_port()
        self.api = f"http://127.0.0.1:{self.port}/api"
        self._started = ExitStack()
        self.server: subprocess.Popen[bytes] | None = None
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.worker_env: dict[str, str] = {}
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")},
            "PREFECT_HOME": str(folder / "home"),
            "PREFECT_API_URL": self.api,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_CLIENT_MAX_RETRIES": "8",
            "PREFECT_CLI_PROMPT": "false",
            "HF_HUB_OFFLINE": "1",
            "APPRENTICE_STORE": str(self.store),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }

    def __enter__(self) -> "Cluster":
        self._started.enter_context(postgres(self.folder / "postgres", self._database))
        self._started.callback(self._stop_all)
        self.start_server()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    def run(self, *command: str) -> str:
        """Runs a command of this environment to its end; returns what it said."""
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}"
        return done.stdout

    def start_server(self) -> None:
        database = f"postgresql+asyncpg://apprentice@127.0.0.1:{self._database}/postgres"
        storage = "prefect.server.concurrency.lease_storage.filesystem"
        self.server = self._start(
            "server",
            ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)],
            {
                "PREFECT_API_DATABASE_CONNECTION_URL": database,
                "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": storage,
                "PREFECT_HOME": str(self.folder / "server-home"),
            },
        )
        until("the server answers", lambda: answers(self.port))
        until("the server is ready", self._is_ready)

    def kill_server(self) -> None:
        assert self.server is not None
        kill_tree(self.server)

    def start_worker(self, pool: str, name: str) -> None:
        """A process worker with a working folder and a Prefect home of its own, as on a machine of its own."""
        self.workers[name] = self._start(
            name,
            ["prefect", "worker", "start", "--pool", pool, "--name", name],
            {"PREFECT_HOME": str(self.folder / name / "home"), "PREFECT_WORKER_QUERY_SECONDS": "2"} | self.worker_env,
        )

    def database_bytes(self) -> int:
        """How large the server's database is."""
        import asyncio

        import asyncpg

        async def ask() -> int:
            connection = await asyncpg.connect(f"postgresql://apprentice@127.0.0.1:{self._database}/postgres")
            try:
                return await connection.fetchval("SELECT pg_database_size('postgres')")
            finally:
                await connection.close()

        return asyncio.run(ask())

    def _start(self, name: str, command: list[str], env: dict[str, str]) -> "subprocess.Popen[bytes]":
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        with (folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=folder,
                env=self.env | env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_hears_signals,
            )

    def _is_ready(self) -> bool:
        import httpx

        try:
            return httpx.get(f"{self.api}/health", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def _stop_all(self) -> None:
        for process in [*self.workers.values(), self.server]:
            if process is not None:
                kill_tree(process)


def _hears_signals() -> None:
    """A child of a background job would ignore Ctrl-C, and a worker's children with it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def children_of(process: "subprocess.Popen[bytes]") -> list[Any]:
    """All processes below one, as psutil knows them."""
    import psutil

    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """Kills a process and all below it, -9."""
    import psutil

    below = children_of(process)
    for each in [process, *below]:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
    psutil.wait_procs(below)


@contextmanager
def postgres(folder: Path, port: int) -> Iterator[None]:
    """PostgreSQL on 127.0.0.1, as an ordinary user: it refuses to run as root."""
    binaries = shutil.which("initdb") and Path(shutil.which("initdb") or "").parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    binaries = binaries or (found[-1] if found else None)
    if binaries is None:
        raise SystemExit("PostgreSQL is needed: apt-get install postgresql")
    folder.mkdir(parents=True)
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        for above in folder.parents:
            if above.stat().st_mode & 0o001 == 0:
                above.chmod(above.stat().st_mode | 0o011)
        user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    data = folder / "data"
    initdb = [binaries / "initdb", "--auth=trust", "--username=apprentice", "--no-sync", "-D", data]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd="/", **user)
    with (folder.parent / "postgres.log").open("wb") as log:
        process = subprocess.Popen(
            [binaries / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder, "-F"],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=True,
            **user,
        )
    try:
        until("PostgreSQL answers", lambda: answers(port))
        yield
    finally:
        process.send_signal(signal.SIGINT)  # fast shutdown
        process.wait(timeout=30)
