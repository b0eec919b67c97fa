"""A GPU stage as a flow run of its own: which stage it makes, what it counts, and how it ends."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.states import Completed, Failed

from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.session import SessionLost
from apprentice.flows import stages
from apprentice.flows.recipe.loading import load_recipe
from tests.flows.commands import TOY


@pytest.mark.parametrize("name", list(stages.STAGES))
def test_each_flow_makes_its_own_stage_with_all_that_it_is_given(name: str, monkeypatch: pytest.MonkeyPatch):
    made: list[Any] = []
    monkeypatch.setattr(stages, "_made", lambda *given: made.append(given) or Completed())
    given = [f"given {n}" for n in range(len(stages.STAGES[name].parameters.required) - 1)]
    body: Any = stages.STAGES[name].fn
    body("recipe", *given)
    ((recipe, stage, *rest),) = made
    assert (recipe, stage.name, rest) == ("recipe", name, given)


@pytest.mark.parametrize(
    ("raised", "state"),
    [
        (None, Completed(message="toy/sft@r, key k")),
        (SessionLost("no answer"), Failed(name="EnvironmentAway", message="no answer")),
        (ZeroDivisionError("a bug"), None),
    ],
)
def test_a_stage_ends_in_a_state_that_says_why_and_its_counts_are_kept_however_it_ends(
    raised: Exception | None, state: Any, monkeypatch: pytest.MonkeyPatch
):
    labelled, held, made = [], [], []

    def stage(run: Any, *given: Any) -> Any:
        made.append((run, *given))
        count("episodes", 2)
        if raised is not None:
            raise raised
        return SimpleNamespace(repository="toy/sft", revision="r", key="k")

    monkeypatch.setattr(stages, "_add_to_labels", labelled.append)
    monkeypatch.setattr(stages, "RunServers", lambda recipe, **how: nullcontext(held.append(how) or "servers"))
    monkeypatch.setattr(stages, "open_store", lambda recipe, **how: held.append(how) or "store")
    monkeypatch.setattr(stages, "current_location", lambda: "here")
    monkeypatch.setattr(stages, "RunContext", lambda *given, **how: (given, sorted(how)))
    recipe = load_recipe(TOY, [])
    if state is None:
        with pytest.raises(ZeroDivisionError):
            stages._made(recipe, stage, "spec", 3)  # type: ignore[arg-type]
    else:
        ended = stages._made(recipe, stage, "spec", 3)  # type: ignore[arg-type]
        assert (ended.type, ended.name, ended.message) == (state.type, state.name, state.message)
    assert labelled == [{"episodes": 2}]
    assert held == [{"holds_device": True}] * 2
    ((run, *given),) = made
    assert (run[0], given) == (("store", "servers", "here"), ["spec", 3])
    assert "holds_device" in run[1]


def test_counts_are_added_to_those_of_earlier_attempts(monkeypatch: pytest.MonkeyPatch):
    updated: list[Any] = []
    labels = {"apprentice.episodes": 3, "other": 1}
    client = SimpleNamespace(
        read_flow_run=lambda run: SimpleNamespace(labels=labels), update_flow_run_labels=lambda *to: updated.append(to)
    )
    context: list[Any] = [None]
    monkeypatch.setattr(stages, "FlowRunContext", SimpleNamespace(get=lambda: context[0]))
    monkeypatch.setattr(stages, "get_client", lambda sync_client: nullcontext(client))
    stages._add_to_labels({"episodes": 2})
    context[0] = SimpleNamespace(flow_run=None)
    stages._add_to_labels({"episodes": 2})
    context[0] = SimpleNamespace(flow_run=SimpleNamespace(id="run"))
    stages._add_to_labels({})
    assert not updated
    stages._add_to_labels({"episodes": 2, "usd": 0.5})
    assert updated == [("run", {"apprentice.episodes": 5, "apprentice.usd": 0.5})]
