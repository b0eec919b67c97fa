"""What the measurement of exported files found: export.json.

In: the answers of a checkpoint and of a file of it to the same questions, what else was measured of the file. Out:
`ExportContents`, its rows for a table, and a sentence for each file.
"""

from pathlib import Path
from typing import Literal

from apprentice.tasks.analysis.broken_episodes import scored
from apprentice.tasks.analysis.comparison import compare, difference_cells
from apprentice.tasks.artifacts.alike import newest_first
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import parent
from apprentice.tasks.artifacts.types import Checkpoint, Exported, Release
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.judgement.contents import Content, Difference
from apprentice.tasks.lineage.node import node_of
from apprentice.tasks.statistics.intervals import interval_of, percent

CONTENTS = "export.json"
State = Literal["as good", "worse", "not shown"]


class MeasuredFile(Content):
    """One form of a model, measured through llama.cpp's own server."""

    form: str
    name: str
    bytes: int
    state: State
    """Against the margin: the accuracy lost is within it by the whole interval, above it, or within it by the estimate
    alone."""
    questions: int
    right: float
    """Share of the questions."""
    valid: float
    """Share of the episodes whose every call was valid."""
    difference: Difference
    """File less checkpoint, on the same questions."""
    prompts: int
    prompts_same: int
    """Of how many the engine has the token ids of training."""
    read_per_s: float
    """Tokens of a prompt, of one request alone."""
    written_per_s: float
    memory: int
    """Resident bytes of the server, its cache for all requests included."""
    command: str
    """That serves it."""
    sentence: str


class ExportContents(Content):
    """What export.json holds."""

    llama_cpp: str
    context: int
    """Tokens of one request."""
    slots: int
    """Requests at once while it was measured."""
    margin: float
    checkpoint_bytes: int
    checkpoint_right: float
    """Share of the questions."""
    questions: int
    files: list[MeasuredFile]

    def rows(self) -> list[dict[str, str]]:
        """A row for the checkpoint and for each file."""
        rate = interval_of(self.checkpoint_right, self.questions)
        accuracy = percent(self.checkpoint_right, rate)
        first = {"form": "checkpoint", "MB": _mb(self.checkpoint_bytes), "accuracy": accuracy}
        first |= dict.fromkeys(("difference", "95% interval", "p"), "–") | {"verdict": ""}
        first |= dict.fromkeys(("same prompts", "read, tokens/s", "written, tokens/s", "memory, MB"), "–")
        return [first, *map(_row, self.files)]

    @property
    def worse(self) -> list[str]:
        """The forms that lost more than the margin."""
        return [each.form for each in self.files if each.state == "worse"]


def measured(
    form: str,
    file: Path,
    command: str,
    before: list[EvaluatedEpisode],
    after: list[EvaluatedEpisode],
    same: tuple[int, int],
    speed: tuple[float, float],
    memory: int,
    margin: float,
) -> MeasuredFile:
    """The figures of a file and what they say.

    Args:
        command: That serves it.
        before: The checkpoint's answers.
        after: The file's.
        same: Prompts with the ids of training, and prompts in all.
        speed: Tokens per second that one request alone reads, and writes.
        memory: Resident bytes of the server.
        margin: The accuracy that it may lose, as a share.
    """
    both, _ = scored({"before": before, "after": after})
    found = Difference.model_validate(compare(both["before"], both["after"]))
    state: State = "worse" if found.delta < -margin else "as good" if found.ci[0] >= -margin else "not shown"
    return MeasuredFile(
        form=form,
        name=file.name,
        bytes=file.stat().st_size,
        state=state,
        questions=len(both["after"]),
        right=sum(each.is_right for each in both["after"]) / len(both["after"]),
        valid=sum(each.valid for each in both["after"]) / len(both["after"]),
        difference=found,
        prompts=same[1],
        prompts_same=same[0],
        read_per_s=speed[0],
        written_per_s=speed[1],
        memory=memory,
        command=command,
        sentence=_sentence(form, state, found, len(both["after"]), margin, same),
    )


def _sentence(form: str, state: State, found: Difference, questions: int, margin: float, same: tuple[int, int]) -> str:
    cells = difference_cells(found)
    figures = f"{cells['accuracy']} accuracy on {questions:,} questions ({cells['95% interval']})"
    allowed = f"{margin * 100:g} points are allowed (export.margin)"
    said = {
        "as good": f"{form} answers as the checkpoint does: {figures}; {allowed}.",
        "worse": f"{form} is WORSE than the checkpoint: {figures}; {allowed}.",
        "not shown": f"{form} is not shown to be as good as the checkpoint: {figures}; {allowed}. More questions tell "
        "(evaluate.questions).",
    }[state]
    others = same[1] - same[0]
    return said + (f" {others} of {same[1]} prompts have other token ids than in training." if others else "")


def _row(file: MeasuredFile) -> dict[str, str]:
    cells = difference_cells(file.difference)
    rate = interval_of(file.right, file.questions)
    return {
        "form": file.form,
        "MB": _mb(file.bytes),
        "accuracy": percent(file.right, rate),
        "difference": cells["accuracy"],
        "95% interval": cells["95% interval"],
        "p": f"{file.difference.p_value:.2g}",
        "verdict": file.state,
        "same prompts": f"{file.prompts_same} of {file.prompts}",
        "read, tokens/s": f"{file.read_per_s:,.0f}",
        "written, tokens/s": f"{file.written_per_s:,.0f}",
        "memory, MB": _mb(file.memory),
    }


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def read_export(folder: Path) -> ExportContents:
    """The contents of an `Exported` in a folder."""
    return ExportContents.model_validate_json((folder / CONTENTS).read_text())


def exports_of(store: LocalStore, checkpoint: Checkpoint) -> list[Exported]:
    """Return the exports of a model, or of the model behind a release, the newest first."""
    revisions = {checkpoint.revision}
    if isinstance(checkpoint, Release):
        trained = node_of(store, parent(checkpoint), {}).inputs.get("trained")
        revisions |= {trained.named.revision} if trained else set()
    made = newest_first(store, Exported, store.tags(Exported, ""))
    return [exported for exported, record in made if record.made_by["inputs"].get("checkpoint") in revisions]
