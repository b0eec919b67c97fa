"""The recipe's sections that belong to the flow: store, regression evaluations, windows. Stages define theirs.

In: parts of a YAML file. Out: validated settings; docs/recipes.md shows each field's docstring.
"""

from pathlib import Path
from typing import Any

from pydantic import Field

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.paths import FilePath
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import CollectSpec, SeedWindows, Shares, Spec, Window

SHIFT = 1_000_000
"""Seeds by which one step of a recipe's seed shifts each window within its block."""


class HubSpec(Spec):
    """The Hugging Face Hub; the token comes from HF_TOKEN."""

    namespace: str
    """A user or an organization to which the token may write."""
    private: bool = True
    """Whether to create private repositories."""
    patience: float = Field(default=600.0, gt=0)
    """Seconds that the Hub may be unreachable or busy before the stage stops. A later run resumes it."""


class StoreSpec(Spec):
    """Where artifacts are stored."""

    path: FilePath = Path("artifacts")
    """A folder. Several machines must all see it under this path. `~` is the home folder, in every path of a recipe;
    variables such as $HOME are refused."""
    hub: HubSpec | None = None
    """The Hub, for machines that share no folder; `path` is then a local cache on each of them."""
    license: str = Field(default="unknown", pattern=r"^[a-z0-9][a-z0-9.-]*$")
    """License identifier for all cards, as the Hub writes it, such as apache-2.0. Check the terms of the teacher and
    the base model yourself."""


class RegressionSpec(Spec):
    """A regression evaluation: another task that the student must not forget, such as another Reasoning Gym dataset."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    """Name in the report: lower case, digits, dashes."""
    environment: EnvironmentSpec
    server: EnvironmentServer = EnvironmentServer()
    """Its server, if the environment is not the recipe's own. Started here by default."""
    questions: int = Field(default=200, ge=1)
    """Number of distinct questions; 200 detect a drop of about 10 points at 50%."""
    may_fall: float = Field(default=0.05, ge=0.0, le=1.0)
    """Largest allowed drop in accuracy, as a share."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens per turn; the evaluation's value by default."""


class ImproveSpec(Spec):
    """How the rounds of `apprentice improve` follow one another; `apprentice run` does not read it."""

    replay: float = Field(default=0.2, ge=0.0, le=0.9)
    """Share of SFT's rows that are drawn from the kept rollouts of earlier rounds, so that nothing is forgotten."""
    ladder: list[dict[str, Any]] = Field(default=[])
    """Complete environment settings, easiest first. A round plays one level; the next one is taken when the champion
    has mastered it: its accuracy there, with its whole interval, is at least `grpo.signals.high`."""
    adapt: bool = True
    """Draw fewer questions of the slices in which the champion is correct, and more of the others."""
    long_run: int = Field(default=400, ge=0)
    """Questions of the window that no gate reads, on which every champion is measured for the curve; 0 for none."""


class RoundSpec(Spec):
    """What one round knows of the rounds before. `apprentice improve` fills it in; its parts enter the stages' keys."""

    number: int = Field(ge=1)
    """The first training is round 0."""
    champion: str | None = None
    """Revision of the champion when the round began; without one the recipe's student is trained."""
    asked: list[str] = Field(default=[])
    """Revisions of the questions of the earlier rounds and of the long-run window, which are not used again."""
    kept: list[str] = Field(default=[])
    """Revisions of the kept rollouts of the earlier rounds, to replay."""
    shares: Shares | None = None
    """The slices with fewer questions."""


BLOCK = 100_000_000
"""Distance in seeds between the windows of two purposes."""
LONG_RUN = 3 * BLOCK - SHIFT
"""First seed of the window that no gate reads: the last part of the block of evaluations."""


class WindowSpec(Spec):
    """A range of seeds."""

    size: int = Field(ge=1, le=SHIFT)
    """Number of seeds, one question each."""
    start: int | None = Field(default=None, ge=0)
    """The first seed. By default, windows are laid out so that no two overlap."""


class WindowSpecs(Spec):
    """Seeds per purpose. `evaluate` needs more seeds than questions, because repeated questions are skipped."""

    collect: WindowSpec
    grpo: WindowSpec
    evaluate: WindowSpec

    def seeds(self, seed: int, questions: int | None) -> SeedWindows:
        """Return the seeds of each purpose, with the starts that the recipe leaves out.

        Args:
            seed: The recipe's, which moves the windows of training.
            questions: How many there are, if they are few. If they suffice for all windows, the windows follow one
                another; if not, all of them are tries of the same questions.
        """
        windows, follows = {}, 0
        has_rows = questions is not None and sum(window.size for _, window in self) <= questions
        for block, (purpose, window) in enumerate(self):
            moved = 0 if purpose == "evaluate" else seed * SHIFT
            start = follows if has_rows else block * BLOCK + moved
            windows[purpose] = Window(start=start if window.start is None else window.start, size=window.size)
            follows += window.size
        return SeedWindows(**windows)


def check_relabelling(collect: CollectSpec, environment: EnvironmentSpec, teacher: TeacherSpec | None) -> None:
    """Raises ValueError where a teacher is to answer the questions of unverified rows, and none can."""
    if collect.relabels and teacher is None:
        raise ValueError("collect.unverified: relabel asks a teacher; name one (teacher.model), or take drop or keep")
    if collect.relabels and environment.knows_all() and all(part.max_turns > 1 for part in environment.make().parts()):
        raise ValueError(
            f"collect.unverified: relabel has a teacher answer a question in one turn, and an episode of {environment} "
            "may have several, whose replies no environment can give; take drop or keep"
        )
