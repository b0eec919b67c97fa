"""Where an environment's server is, and how patient one is with it.

In: a recipe's section, or what a run started itself. Out: a frozen value that any process can use.
"""

from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from apprentice.envs.wire.address import without_secrets

NO_HEADERS = (
    "OpenEnv's client sends no headers either: have the server listen where only this machine reaches it, or open a "
    "tunnel to it (ssh -L) and name that"
)
STRICT = ConfigDict(
    frozen=True,
    extra="forbid",
    use_attribute_docstrings=True,
    allow_inf_nan=False,
    hide_input_in_errors=True,
)
"""Of all settings: unknown fields are refused, and numbers that are none; an error does not show what was given."""


class EnvironmentServer(BaseModel):
    """An OpenEnv server. Not part of any key: a question is the same on every server."""

    model_config = STRICT

    url: str = Field(default="", pattern=r"^(https?://\S+)?$")
    """http:// or https://; for a Space https://OWNER-NAME.hf.space. One that runs already. No user, password or query:
    it is written into logs."""
    image: str = Field(default="", pattern=r"^(\w[\w./:@-]*)?$")
    """A Docker image; its container is started on this machine when a stage first asks, and stopped with the run."""
    local: bool | None = None
    """Our own server as a child process on a free port, stopped with the run. So it is where neither URL nor image is
    named."""
    shared: bool = True
    """Whether other runs use it, too: then they share one limit of sessions, where a Prefect server is in use."""
    space: str | None = None
    """The Space's repository, owner/name: its stage on the Hub is read, and it is woken, when it does not answer."""
    sessions: int = Field(default=64, ge=1)
    """Sessions that one stage holds at once, if the server grants as many. More hide more of the teacher's latency."""
    message_timeout: float = Field(default=20.0, gt=0)
    """Seconds after which a message counts as lost and its session is thrown away."""
    patience: float = Field(default=300.0, gt=0)
    """Seconds that an outage may last before the stage stops, to be resumed."""
    parts: dict[str, "EnvironmentServer"] = {}
    """Of a mixture: where each of its environments runs, by the environment's name; left-out ones run here."""
    grace: float = Field(default=20.0, gt=0)
    """Seconds of an outage after which a stage on a work pool of its own lets go of its device: half of them it waits,
    the other half is for saving, which may take a large model longer. The rest of the patience is waited without the
    device, and the stage goes on from there. A message that takes a quarter of it counts as lost."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        without_secrets(url, NO_HEADERS)
        try:
            parts = urlsplit(url)
            named = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"{url!r} is no address of a server: {error}") from None
        if url and not named[0]:
            raise ValueError(f"{url!r} is no address of a server: it names no host")
        return url

    @property
    def is_local(self) -> bool:
        """Whether it is our own server as a child process, which has still to be started."""
        return not self.url and not self.image

    def at(self, url: str) -> "EnvironmentServer":
        """The same where it was started: nobody else uses it."""
        return self.model_copy(update={"url": url, "image": "", "local": None, "shared": False})

    @model_validator(mode="after")
    def _is_in_one_place(self) -> "EnvironmentServer":
        named = {"url": self.url, "image": self.image, "local": self.local}
        if len(chosen := [name for name, value in named.items() if value]) > 1:
            raise ValueError(f"{' and '.join(chosen)}: a server is in one place; name one of url, image, local: true")
        if self.local is False and not chosen:
            raise ValueError("local: false says where the server is not; name its url or its image")
        return self
