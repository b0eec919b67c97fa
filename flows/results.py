"""What the library's functions return: an artifact together with the store that has it.

In: an artifact, or its name. Out: rows as a DataFrame or a Dataset, weights as a transformers model. Nothing is read
before it is asked for.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from apprentice.flows.recipe.location import given_path
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import RECORD, Parent, parent
from apprentice.tasks.artifacts.types import Artifact, Checkpoint
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.judgement.run_models import Models
from apprentice.tasks.lineage.locate import locate
from apprentice.tasks.lineage.node import node_of
from apprentice.tasks.reporting.errors import Stop

if TYPE_CHECKING:
    import datasets
    import pandas

A = TypeVar("A", bound=Artifact, covariant=True)


class Result(Generic[A]):
    """An artifact in a store, such as token lengths or a verdict.

    Attributes:
        artifact: The frozen reference: `repository`, `revision`, `key`, and its own figures, such as `accuracy` of an
            evaluation (a share from 0.0 to 1.0) or `cost_usd` of rollouts (USD).
    """

    def __init__(self, store: LocalStore, artifact: A):
        self.store = store
        self.artifact = artifact

    @property
    def key(self) -> str:
        """20 hex digits that name what made it: stage, version, settings, inputs."""
        return self.artifact.key

    @property
    def folder(self) -> Path:
        """The folder of its files, which are not to be changed.

        Raises:
            Stop: They are gone, or not what was published.
        """
        return self.store.fetch(self.artifact)

    @property
    def inputs(self) -> dict[str, Any]:
        """Its inputs, as `Rows`, `Model` or `Result`, by their names in the stage.

        Raises:
            Stop: One of them no longer exists.
        """
        nodes = node_of(self.store, parent(self.artifact), {}).inputs
        return {name: as_result(self.store, node.artifact) for name, node in nodes.items()}

    def __repr__(self) -> str:
        figure = f": {self.artifact.figure}" if self.artifact.figure else ""
        return f"<{type(self.artifact).__name__} {self.artifact.repository}@{self.key}{figure}>"


class Rows(Result[A]):
    """An artifact with one row per episode or question: rollouts, kept rollouts, an evaluation, questions.

    The columns are on the artifact's card, README.md in its `folder`.
    """

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the rows as a DataFrame: one row per episode, ordered by seed; `messages` holds lists.

        Raises:
            Stop: The files are gone, or not what was published.
        """
        import pandas

        return pandas.DataFrame(read_rows(self._file()))

    def dataset(self) -> "datasets.Dataset":
        """Return the rows as a dataset, as `datasets.load_dataset` reads them; TRL's SFTTrainer takes kept rollouts.

        A call's arguments are text, which few chat templates read. `apprentice export --format trl` writes mappings.

        Raises:
            Stop: The files are gone, or not what was published.
        """
        from datasets import Dataset

        read = Dataset.from_json(str(self._file()))
        assert isinstance(read, Dataset)
        return read

    def _file(self) -> Path:
        (file,) = self.folder.glob("*.jsonl")
        return file


class Model(Result[A]):
    """A checkpoint with its tokenizer: the student before training, after SFT or after GRPO, or a release."""

    def model(self, **how: Any) -> Any:
        """Return the transformers model, in fp32 on the CPU.

        Args:
            how: For `AutoModelForCausalLM.from_pretrained`, such as device_map="cuda".

        Raises:
            Stop: The files are gone, or hold code or pickled weights, which are not loaded here.
        """
        from apprentice.tasks.models.checkpoints import load_model

        return load_model(self.folder, **how)

    def tokenizer(self) -> Any:
        """Return the tokenizer, with the chat template of training. Raises Stop as `model` does."""
        from apprentice.tasks.models.tokenizer import load_tokenizer

        return load_tokenizer(self.folder)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the training curves: one row per logged step, one column per metric; empty for an untrained student.

        Raises:
            Stop: The files are gone, or not what was published.
        """
        import pandas

        from apprentice.tasks.training.trainer import read_log

        return pandas.DataFrame(read_log(self.folder) if (self.folder / "log.json").exists() else [])


class Run:
    """A finished run.

    Attributes:
        folder: Has report.html, report.md, report.json and recipe.yaml.
        report: What report.json holds.
        models: The trained models by name, in the order of training (`ModelName`).
        evaluations: Their results on the held-out questions, by the same names.
        rollouts: What SFT's rows were taken from; None where no teacher was asked.
        kept: The rows that SFT learned from; None without SFT.
    """

    def __init__(self, folder: Path, store: LocalStore):
        self.folder = folder
        self.report: dict[str, Any] = json.loads((folder / "report.json").read_text())
        made = self.report["artifacts"]
        self.models: Models[Model[Any]] = Models(_by_name(store, made["models"]))
        self.evaluations: Models[Rows[Any]] = Models(_by_name(store, made["evaluations"]))
        rows = _by_name(store, {name: made[name] for name in ("rollouts", "kept")})
        self.rollouts: Rows[Any] | None = rows.get("rollouts")
        self.kept: Rows[Any] | None = rows.get("kept")

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row per model: `n` episodes, and the shares `accuracy`, `format_compliance` and `mean_score`, each
        with the bounds of its 95% interval in `…_low` and `…_high`."""
        import pandas

        return pandas.DataFrame.from_dict(
            {name: dict(_rates(found)) for name, found in self.report["models"].items()}, orient="index"
        )

    def dataset(self) -> "datasets.Dataset":
        """Return the rows that SFT learned from.

        Raises:
            Stop: The run had no SFT, or the files are gone.
        """
        if self.kept is None:
            raise Stop("This run trained without SFT, so no rows were kept.", "See run.evaluations for its episodes.")
        return self.kept.dataset()

    def model(self, **how: Any) -> Any:
        """Return the transformers model that was trained last, as `Model.model` does."""
        return self.models.last.model(**how)

    def __repr__(self) -> str:
        rates = ", ".join(f"{name} {found['accuracy']:.1%}" for name, found in self.report["models"].items())
        return f"<Run {self.folder.name}: {rates}>"


def open_artifact(given: str | Path, store: str | Path = "artifacts") -> Result[Any]:
    """Open an artifact that an earlier run made.

    Args:
        given: A key, a revision or a tag from a report's lineage, or its first 6 characters; or an artifact's folder.
        store: The folder of artifacts in which a key is looked for.

    Returns:
        `Rows`, a `Model`, or a plain `Result` for what has neither rows nor weights.

    Raises:
        Stop: There is none, or several are named so.
    """
    given, store = given_path(given), given_path(store)
    if given.is_dir():
        found, named = _at(given)
    else:
        found, named = locate(str(given), store)
    return as_result(found, node_of(found, named, {}).artifact)


def as_result(store: LocalStore, artifact: Artifact) -> Any:
    """Return the artifact as the kind of result that it is."""
    if isinstance(artifact, Checkpoint):
        return Model(store, artifact)
    files = store.record(type(artifact), artifact.key, artifact.revision).files
    return (Rows if any(name.endswith(".jsonl") for name in files) else Result)(store, artifact)


def _at(folder: Path) -> tuple[LocalStore, Parent]:
    """Return the artifact of a folder, root/datasets/namespace/name/snapshots/revision, and its store. Raises Stop."""
    folder = folder.resolve()
    if folder.parent.name != "snapshots" or not (folder / RECORD).exists():
        raise Stop(
            f"{folder} is not the folder of an artifact: it is no snapshot with {RECORD}.",
            "Name a folder below snapshots/ of a store, or a key from a report's lineage.",
        )
    return locate(folder.name, folder.parents[4])


def _by_name(store: LocalStore, made: dict[str, Any]) -> dict[str, Any]:
    nodes = {name: node_of(store, Parent(**each), {}) for name, each in made.items() if each}
    return {name: as_result(store, node.artifact) for name, node in nodes.items()}


def _rates(found: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    yield "n", found["n"]
    for rate, (low, high) in found["ci"].items():
        yield from ((rate, found[rate]), (f"{rate}_low", low), (f"{rate}_high", high))
