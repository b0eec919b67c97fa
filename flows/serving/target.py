"""Which model is served, and how an engine is started for it.

In: a recipe, whose champion is followed, or a model's key. Out: a `Target`, which knows the model in force and starts
an engine for a model.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from apprentice.tasks.artifacts.foreign.models import runs_code
from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Checkpoint, Release
from apprentice.tasks.episodes.thinking import thinking_in
from apprentice.tasks.judgement.champions import TAG, Champions
from apprentice.tasks.lineage.locate import locate
from apprentice.tasks.lineage.node import node_of
from apprentice.tasks.models.configuration import context_length
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.serving.engine import Engine, EngineName, launch
from apprentice.tasks.serving.exported import exports_of
from apprentice.tasks.serving.gguf import FULL, check_exportable, check_tools, convert

LOOK_HERE_S, LOOK_ON_HUB_S = 1.0, 60.0
"""Seconds between two looks at the champion's tag, in a folder and on the Hub."""
SMALLEST_FIRST = ("q4_0", "q4_k_m", "q5_k_m", "q6_k", "q8_0", FULL)


@dataclass(frozen=True)
class Target:
    """What to serve.

    Attributes:
        store: Where it is.
        pinned: The model, where a key names one; None to follow the champion's tag.
        engine: What serves it.
        sessions: Requests at once.
        context: Tokens of one request, as far as the model reads.
    """

    store: LocalStore
    pinned: Checkpoint | None
    engine: EngineName
    sessions: int
    context: int

    @property
    def look_s(self) -> float:
        """Seconds between two looks at the tag."""
        return LOOK_ON_HUB_S if isinstance(self.store, HubStore) else LOOK_HERE_S

    def model(self) -> Checkpoint:
        """The model in force. Raises Stop where there is none yet."""
        found = self.pinned or Champions(self.store).current()
        if found is None:
            raise Stop(
                f"{self.store.project} has no champion yet: no model has passed the gate.",
                "Run the recipe, or serve another model by its key: apprentice serve KEY (`apprentice runs` and the "
                "report's lineage have keys).",
            )
        return found

    def start(self, model: Checkpoint) -> Engine:
        """An engine that loads the model; wait until it is ready. Raises Stop where this engine cannot serve it."""
        folder = self.store.fetch(model)
        runs_code(folder, ())
        tokenizer = load_tokenizer(folder)
        template = tokenizer.chat_template or ""
        if not template:
            raise Stop(f"{model.key} has no chat template.", "Serve a model that was trained by this project.")
        served = folder
        if self.engine == "llama.cpp":
            check_exportable(folder, tokenizer, model.key)
            served = self._file_of(model, folder)
        most = context_length(json.loads((folder / "config.json").read_text()))
        how = launch(self.engine, served, template, self.sessions, min(self.context, most))
        return Engine(how._replace(thinks=thinking_in(template) is not None))

    def _file_of(self, model: Checkpoint, folder: Path) -> Path:
        """The smallest exported file that is as good as the model; without an export one in 16 bits."""
        for exported in exports_of(self.store, model):
            good = [each for each in SMALLEST_FIRST if each in exported.forms and each not in exported.worse]
            if good:
                [file] = self.store.fetch(exported).glob(f"*-{good[0]}.gguf")
                return file
        check_tools([FULL])
        to = self.store.root / ".served" / f"{model.revision}.gguf"
        to.parent.mkdir(parents=True, exist_ok=True)
        convert(folder, to, model.key)
        return to


def model_of_key(key: str, root: Path, hub: str | None) -> tuple[LocalStore, Checkpoint]:
    """The store and the model that a key names. Raises Stop for another kind of artifact."""
    store, named = locate(key, root, hub)
    found = node_of(store, named, {}).artifact
    if not isinstance(found, Checkpoint):
        raise Stop(
            f"{key} is {type(found).__name__}, not a model.",
            "Take the key of sft, grpo or release, or name a recipe to serve its champion.",
        )
    return store, found


def only_project(root: Path) -> str:
    """The one project of a folder of artifacts that has a champion. Raises Stop where none or several do."""
    suffix = f"-{Release.suffix}"
    found = sorted(each.parent.parent.name.removesuffix(suffix) for each in root.glob(f"models/*/*{suffix}/refs/{TAG}"))
    if len(found) != 1:
        raise Stop(
            f"{len(found)} projects in {root} have a champion{': ' + ', '.join(found) if found else ''}.",
            "Name a recipe or a model's key: apprentice serve RECIPE.",
        )
    return found[0]
