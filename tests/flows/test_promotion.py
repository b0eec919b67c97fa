"""What the flow tells the gate: whether the champion is known, who was rolled back, how far a skill may fall."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import flow

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.flows.pipeline import Pipeline
from apprentice.flows.promotion import promotion
from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.advice.ending import read_decision
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Decision
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.judgement.run_models import Models
from tests.flows.commands import TOY
from tests.tasks.family import Family

pytestmark = pytest.mark.usefixtures("prefect_server")


class AwayHub(LocalStore):
    """Cannot be asked who is champion."""

    @property
    def in_reach(self) -> bool:
        return False


class RolledBack(Champions):
    """Whoever comes was champion once and was taken back."""

    def was_rolled_back(self, weights: str) -> bool:
        return True


@pytest.fixture
def decided(tmp_path: Path, chain_sum: EnvironmentSpec) -> Callable[..., dict[str, Any]]:
    """The decision on a run's model, which was right on three questions more than the untrained student."""

    def run(store: type[LocalStore] = LocalStore) -> dict[str, Any]:
        family = Family(store(tmp_path / "artifacts", "toy"), tmp_path, chain_sum)
        recipe = load_recipe(TOY, [])
        regression = recipe.guards[0].name
        regression_evaluations = {f"{regression}.{name}": family.evaluations[name] for name in ("sft", "grpo")}

        @flow
        def promote() -> None:
            stages = Pipeline(family.work, recipe, base=family.base)
            stages.models.update({"sft": family.sft, "grpo": family.grpo})
            promotion(stages, Models(family.evaluations), regression_evaluations, family.verdict)

        promote()
        refs = next(folder for folder in (tmp_path / "artifacts/datasets/local").glob("*-decisions")) / "refs"
        made = [family.store.find(Decision, ref.name) for ref in refs.iterdir() if ref.name != family.decision.key]
        (decision,) = [each for each in made if each is not None]
        return read_decision(family.store.fetch(decision)).as_json() | {"allowed": recipe.guards[0].may_fall}

    return run


def refused(decision: dict[str, Any]) -> set[str]:
    return {rule["rule"] for rule in decision["rules"] if not rule["holds"]}


def test_three_questions_more_are_too_few_and_the_regression_evaluations_have_the_recipes_allowance(decided):
    decision = decided()
    assert refused(decision) == {"exact test agrees (p below 0.05)"}
    assert list(decision["decided_by"]["guards"].values()) == [decision["allowed"]]
    assert decision["comparison"]["delta"] == 0.75


def test_where_the_hub_is_away_nobody_is_promoted(decided):
    assert "the champion is known" in refused(decided(AwayHub))


def test_what_was_rolled_back_is_refused(decided, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("apprentice.flows.promotion.Champions", RolledBack)
    assert "not rolled back" in refused(decided())
