"""An environment's server: where it runs, its timeouts, and a circuit breaker for the time that it is away.

In: a recipe's section, or a server that the run started. Out: a frozen value that any process can use. Reads the stage
of a Space that does not answer, and restarts it if that helps.

During an outage only one probe tries to reach the server. In: the success or failure of the sessions' messages. Out: a
wait that ends when the server is back, or SessionLost. Why: otherwise every session would retry by itself, and a
teacher would be paid for turns that cannot be played.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import tenacity
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from apprentice.envs.wire.metrics import count

if TYPE_CHECKING:
    from huggingface_hub import HfApi

NO_HEADERS = (
    "OpenEnv's client sends no headers either: let the server listen where only this machine reaches it, or open a "
    "tunnel to it (ssh -L) and use its URL"
)
STRICT = ConfigDict(
    frozen=True,
    extra="forbid",
    use_attribute_docstrings=True,
    allow_inf_nan=False,
    hide_input_in_errors=True,
)
"""Config of all settings: rejects unknown fields and non-finite numbers; errors do not repeat the input."""


class EnvironmentServer(BaseModel):
    """An OpenEnv server. Not part of any key: the questions are the same on every server."""

    model_config = STRICT

    url: str = Field(default="", pattern=r"^(https?://\S+)?$")
    """URL of a server that is already running: http:// or https://; for a Space https://OWNER-NAME.hf.space. No user,
    password or query: it is written into logs."""
    urls: list[str] = Field(default=[], exclude_if=lambda urls: not urls)
    """In place of `url`: several copies of one server that are used as one, for servers that grant one session each."""
    command: str = Field(default="", exclude_if=lambda command: not command)
    """What starts the server on this machine, with {port} where it takes the port, such as `uvicorn app:app --port
    {port}`; it stops with the run."""
    copies: int = Field(default=1, ge=1, le=256, exclude_if=lambda copies: copies == 1)
    """How many processes `command` starts. Each has sessions of its own."""
    image: str = Field(default="", pattern=r"^(\w[\w./:@-]*)?$")
    """Docker image; its container starts on this machine when a stage first needs it, and stops with the run."""
    local: bool | None = None
    """Run the installed server as a child process on a free port, stopped with the run. The default if neither URL nor
    image is set."""
    shared: bool = True
    """Whether other runs use the server too. With a Prefect server, they then share one session limit."""
    space: str | None = None
    """The Space's repository, owner/name. If the Space does not answer, its stage is read from the Hub and it is
    restarted."""
    sessions: int = Field(default=64, ge=1)
    """Maximum concurrent sessions of one stage. More sessions hide more of the teacher's latency."""
    message_timeout: float = Field(default=20.0, gt=0)
    """Seconds after which a message counts as lost and its session is discarded."""
    patience: float = Field(default=300.0, gt=0)
    """Seconds that an outage may last before the stage stops. A later run resumes it."""
    parts: dict[str, "EnvironmentServer"] = {}
    """For a mixture: the server of each environment, by the environment's name. Environments left out run here."""
    grace: float = Field(default=20.0, gt=0)
    """Seconds of an outage after which a stage on its own work pool releases its device: half to wait, half to save,
    which may take longer for a large model. It waits for the rest of `patience` without the device and then resumes.
    A message that takes a quarter of this counts as lost."""

    @model_validator(mode="before")
    @classmethod
    def _has_a_first_url(cls, given: Any) -> Any:
        if isinstance(given, dict) and (urls := given.get("urls")) and not given.get("url"):
            return given | {"url": urls[0]}
        return given

    @field_validator("urls")
    @classmethod
    def _are_addresses(cls, urls: list[str]) -> list[str]:
        return [cls(url=url).url for url in urls]

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        without_secrets(url, NO_HEADERS)
        try:
            parts = urlsplit(url)
            named = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"{url!r} is not the URL of a server: {error}") from None
        if url and not named[0]:
            raise ValueError(f"{url!r} is not the URL of a server: it has no host")
        return url

    @property
    def is_local(self) -> bool:
        """Whether it runs as a child process that has not been started yet."""
        return not self.url and not self.image and not self.command

    def at(self, url: str, *more: str) -> "EnvironmentServer":
        """Return a copy with the URLs at which this run started it; it is for this run alone."""
        started = {"url": url, "urls": [url, *more] if more else [], "image": "", "command": "", "local": None}
        return self.model_copy(update=started | {"shared": False})

    def each(self) -> "list[EnvironmentServer]":
        """Return the copies of the server, each by itself."""
        return [self.model_copy(update={"url": url, "urls": []}) for url in self.urls or [self.url]]

    @model_validator(mode="after")
    def _is_in_one_place(self) -> "EnvironmentServer":
        named = {"url": self.url, "image": self.image, "local": self.local, "command": self.command}
        if len(chosen := [name for name, value in named.items() if value]) > 1:
            raise ValueError(f"{' and '.join(chosen)} exclude each other: set one of url, image, command, local: true")
        if self.command and "{port}" not in self.command:
            raise ValueError("command must say where the port goes, such as: uvicorn app:app --port {port}")
        if self.local is False and not chosen:
            raise ValueError("local: false needs a url or an image")
        return self


KINDS = ("user or password", "query", "fragment")


def without_secrets(url: str, remedy: str) -> str:
    """Return the URL unchanged. Raises ValueError if it holds a user, a password, a query or a fragment.

    Searches the text instead of parsing it: a parser's error message would quote the URL.

    Args:
        remedy: How to pass a secret to this server, if it takes one.
    """
    after = url.partition("://")[2] or url
    authority = after.replace("\\", "/").partition("/")[0].partition("?")[0].partition("#")[0]
    found = [kind for kind, is_in in zip(KINDS, ("@" in authority, "?" in after, "#" in after), strict=True) if is_in]
    if found:
        forbidden = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
        raise ValueError(f"a URL is written into logs and artifacts and must not hold a {forbidden}; {remedy}")
    return url


RESTARTED = ("SLEEPING", "PAUSED", "STOPPED", "RUNTIME_ERROR")
"""Stages in which a restart helps."""


@dataclass
class Space:
    """A Space on the Hub. `str(space)` describes its last known stage."""

    repository: str
    _api: "HfApi | None" = None
    _known: str = "its stage is unknown"
    _restarted: str | None = None

    def __str__(self) -> str:
        return f"Space {self.repository}: {self._known}"

    def wake(self) -> None:
        """Read the stage, and request one restart each time the Space enters a stage in which a restart helps."""
        from huggingface_hub import HfApi

        api = self._api or HfApi()
        try:
            stage = str(api.get_space_runtime(self.repository).stage)
        except Exception as error:  # the server itself may be back: the probe decides
            self._known = f"the Hub did not return its stage ({_brief(error)})"
            return
        if stage not in RESTARTED:
            self._known, self._restarted = f"stage {stage}", None
        elif self._restarted != stage:
            self._restarted = stage
            try:
                api.restart_space(self.repository)
                self._known = f"stage {stage}; a restart was requested"
            except Exception as error:
                self._known = f"stage {stage}; a restart was refused ({_brief(error)}): its owner must restart it"


def _brief(error: Exception) -> str:
    """Describe an error without its message, which may quote a token."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"status {status}" if status else type(error).__name__


FAILURES = 3
"""Consecutive connection failures after which the circuit opens."""


outage_listeners: "list[Callable[[Literal['began', 'ended'], EnvironmentServer], None]]" = []
"""Called at the start and the end of every outage that sessions of this process wait for."""


class ServerFailed(Exception):
    """A local server exited before it was ready."""


class SessionLost(Exception):
    """The server was unreachable for longer than its `patience`."""


class Breaker:
    """Shared by all sessions of one server. Runs on the event loop of `waiting`.

    Args:
        probe: Checks that the server answers; raises OSError or EOFError if it does not.
        say: Called with a message about the outage.

    Attributes:
        gave_up: Why the breaker no longer waits for the server; None while it does.
        opening: Held while a session is opened: one at a time, so that the server's limit is exceeded by one at most.
    """

    def __init__(self, server: EnvironmentServer, probe: Callable[[], Awaitable[None]], say: Callable[[str], None]):
        self._server = server
        self._probe = probe
        self._say = say
        self.opening = asyncio.Lock()
        self._space = Space(server.space) if server.space else None
        self._failures = 0
        self._closed = asyncio.Event()
        self._closed.set()
        self.gave_up: str | None = None
        self._probing: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Wait while the circuit is open. Raises SessionLost if the breaker gave up."""
        await self._closed.wait()
        if self.gave_up:
            raise SessionLost(self.gave_up)

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        """Count a connection failure; the third in a row opens the circuit and starts the probe."""
        self._failures += 1
        if self._failures >= FAILURES and self._closed.is_set() and not self.gave_up:
            self._closed.clear()
            self._probing = asyncio.create_task(self._until_back())

    def stop(self) -> None:
        """End the probe; callers that still wait get SessionLost."""
        if self._probing is not None:
            self._probing.cancel()
        self.gave_up = self.gave_up or f"{self._server.url}: stopped waiting for it"
        self._closed.set()

    async def until_there(self) -> None:
        """Wait until the server answers. Raises SessionLost if it does not within `patience`."""
        try:
            await self._wake_and_probe()
        except (OSError, EOFError):
            await self._until_back()
            await self.wait()
        else:
            for listener in outage_listeners:  # a breaker that gave up did not report the end of the outage
                listener("ended", self._server)

    async def _until_back(self) -> None:
        began = time.monotonic()
        for listener in outage_listeners:
            listener("began", self._server)
        self._say(f"{self._server.url} does not answer; waiting up to {self._server.patience:.0f} s for it.")
        try:
            await tenacity.AsyncRetrying(
                retry=tenacity.retry_if_exception_type((OSError, EOFError)),
                wait=tenacity.wait_exponential(multiplier=0.25, max=20.0) + tenacity.wait_random(0.0, 0.25),
                stop=tenacity.stop_before_delay(self._server.patience),
                before_sleep=self._report,
                reraise=True,
            )(self._wake_and_probe)
        except Exception as error:
            stage = f" ({self._space})" if self._space else ""
            self.gave_up = f"{self._server.url} was down for {time.monotonic() - began:.0f} s: {why(error)}{stage}"
        else:
            self._say(f"{self._server.url} is back after {time.monotonic() - began:.0f} s.")
        finally:
            count("waited_s", time.monotonic() - began)
            if not self.gave_up:
                for listener in outage_listeners:
                    listener("ended", self._server)
            self._failures = 0
            self._closed.set()

    async def _wake_and_probe(self) -> None:
        if self._space is not None:
            await asyncio.to_thread(self._space.wake)
        await self._probe()

    def _report(self, state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        assert state.next_action is not None
        error = state.outcome.exception()
        assert error is not None
        stage = f" {self._space}." if self._space else ""
        self._say(f"Waiting for {self._server.url} ({why(error)}).{stage} Next try in {state.next_action.sleep:.1f} s.")


def why(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) and not str(error) else str(error)
