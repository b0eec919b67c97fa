"""Rounds in a store, for tests of what follows from them."""

import json
from typing import Any

from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Provenance, parent
from apprentice.tasks.artifacts.types import (
    Artifact,
    Decision,
    Evaluation,
    GrpoCheckpoint,
    KeptRollouts,
    Questions,
    Release,
    SftCheckpoint,
    Verdict,
)
from apprentice.tasks.judgement.champions import Champions


class History:
    """Rounds in a store, as their gates left them; nothing is trained."""

    def __init__(self, store: LocalStore):
        self.store = store

    def make(
        self, kind: type[Artifact], key: str, counts: dict[str, Any], inputs: dict[str, Artifact], **given: Any
    ) -> Any:
        revisions = {name: each.revision for name, each in inputs.items()}
        made_by = {"stage": kind.suffix, "version": 1, "settings": given.get("settings", {}), "inputs": revisions}
        recipe = given.get("recipe", {})
        sources = {name: parent(each) for name, each in inputs.items()}
        provenance = Provenance(recipe=recipe, inputs=sources, made_at=given.get("made_at", ""))
        with self.store.staging() as out:
            for name, text in (given.get("files") or {"file": key}).items():
                (out / name).write_text(text)
            return self.store.publish(kind, key, out, counts, made_by, provenance)

    def add(
        self,
        recipe: Recipe,
        promoted: bool,
        accuracy: float = 0.5,
        slices: Any = (),
        made_at: str = "",
        samples: int = 1,
    ) -> Release:
        name = f"{recipe.round.number if recipe.round else 0}"
        counts = {"collect": 1, "grpo": 1, "evaluate": 1, "dropped_from_grpo": 0}
        questions = self.make(Questions, f"questions-{name}", counts, {})
        counts = {"episodes": 1, "kept": 1, "dropped": {}}
        row = json.dumps({"seed": int(name), "messages": [{}, {"content": "a question"}]})
        kept = self.make(KeptRollouts, f"kept-{name}", counts, {}, files={"kept.jsonl": f"{row}\n"})
        sft = self.make(SftCheckpoint, f"sft-{name}", {"parameters": 1, "stage": "sft"}, {"kept": kept})
        counts = {"parameters": 1, "stage": "grpo"}
        trained = self.make(GrpoCheckpoint, f"grpo-{name}", counts, {"checkpoint": sft})
        rates = {"protocol": "parity", "n": 400, "format_compliance": 1.0, "mean_score": 0.5, "cost_usd": 0.0}
        roles = {}
        for role in ("challenger", "rival"):
            own = rates | {"model": role, "accuracy": accuracy}
            settings = {"spec": {"samples": samples}}
            made = self.make(Evaluation, f"{role}-{name}", own, {"questions": questions}, settings=settings)
            roles[f"evaluations.{role}"] = made
        files = {"verdict.json": json.dumps({"slices": slices, "contamination": {"clean": True}})}
        counts = {"diagnosis": "", "contaminated": False}
        judged = self.make(Verdict, f"verdict-{name}", counts, {}, files=files)
        counts = {"promoted": promoted, "metric": "accuracy", "delta": 0.1, "reasons": []}
        decided = self.make(Decision, f"decision-{name}", counts, roles)
        counts = {"parameters": 1, "stage": "champion", "weights": name, "promoted": promoted}
        inputs = {"trained": trained, "judged": judged, "decision": decided}
        rule = {"rule": "accuracy better", "holds": promoted, "found": "+0.1 points"}
        files = {"decision.json": json.dumps({"rules": [rule], "promoted": promoted, "rival": "champion"})}
        about = {"recipe": recipe.for_record(), "files": files, "made_at": made_at}
        release = self.make(Release, f"release-{name}", counts, inputs, **about)
        Champions(self.store).promote(release, Champions(self.store).current())
        return release
