"""The sections of a recipe that are the flow's own: store, guard rails, windows. The stages' are theirs.

In: parts of a YAML file. Out: checked settings; a field's docstring says what it means.
"""

from pathlib import Path

from pydantic import Field

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.settings.spec import Spec

SHIFT = 1_000_000
"""Seeds by which a recipe's seed moves each window within its block."""


class HubSpec(Spec):
    """The Hugging Face Hub; the token comes from HF_TOKEN."""

    namespace: str
    """A user or an organisation to which the token may write."""
    private: bool = True
    """Whether repositories are made private."""
    patience: float = Field(default=600.0, gt=0)
    """Seconds that the Hub may be away, or busy, before the stage stops, to be resumed."""


class StoreSpec(Spec):
    """Where artifacts are kept."""

    path: Path = Path("artifacts")
    """A folder; on several machines one that all of them see under this name."""
    hub: HubSpec | None = None
    """The Hub, where machines that share no folder meet; `path` is then a cache in front of it, on each of them."""
    license: str = Field(default="unknown", pattern=r"^[a-z0-9][a-z0-9.-]*$")
    """SPDX identifier as the Hub knows it, in lower case such as apache-2.0, written on every card; the teacher's and
    the base model's terms are yours to check."""


class GuardSpec(Spec):
    """Something else that the student must not forget: another environment, or another of Reasoning Gym's datasets."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    """What the report calls it: lower case, digits, dashes."""
    environment: EnvironmentSpec
    server: EnvironmentServer = EnvironmentServer()
    """Where it runs, for another environment than the recipe's own; left out, it is started here."""
    questions: int = Field(default=200, ge=1)
    """Distinct ones; 200 show a fall of about 10 points at 50%."""
    may_fall: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share by which its accuracy may fall."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Tokens a turn may take; those of the evaluation when left out."""


class WindowSpec(Spec):
    """A seed window; left-out starts are laid out so that no two windows can overlap."""

    size: int = Field(ge=1, le=SHIFT)
    """Seeds, one question each."""
    start: int | None = Field(default=None, ge=0)
    """The first seed; left out, laid out so that no two windows overlap."""


class WindowSpecs(Spec):
    """How many seeds each purpose gets. `evaluate` needs some more than its questions: repeated ones are skipped."""

    collect: WindowSpec
    grpo: WindowSpec
    evaluate: WindowSpec
