"""An environment's server: where it runs, and its timeouts.

In: a recipe's section, or a server that the run started. Out: a frozen value that any process can use.
"""

from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

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


outage_listeners: "list[Callable[[Literal['began', 'ended'], EnvironmentServer], None]]" = []
"""Called at the start and the end of every outage that sessions of this process wait for."""


class ServerFailed(Exception):
    """A local server exited before it was ready."""


class SessionLost(Exception):
    """The server was unreachable for longer than its `patience`."""
