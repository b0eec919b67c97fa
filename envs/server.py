"""Where an environment's server is, and how patient one is with it.

In: a recipe's section, or what a run started itself. Out: a frozen value that any process can use.
"""

from pydantic import BaseModel, ConfigDict, Field


class EnvironmentServer(BaseModel):
    """An OpenEnv server. Not part of any key: a question is the same on every server."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: str = ""
    """http:// or https://; for a Space https://OWNER-NAME.hf.space. Left out, the run starts and stops one here."""
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
