"""`apprentice.retrain` hands the recipe on, in a server's sight, and returns what the run left; nothing is trained."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.settings import get_current_settings

from apprentice import load_recipe
from apprentice.flows import library
from tests.flows.commands import TOY


@pytest.mark.parametrize("named", [True, False])
def test_a_training_by_call_is_that_of_the_command(named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []
    recipe = load_recipe(TOY, [f"store.path={tmp_path / 'store'}"])
    store = recipe.store.path.absolute() / ".prefect"

    def flow(*, recipe: Any, runs: Path) -> Path:
        calls.append((recipe, runs, get_current_settings().results.local_storage_path == store))
        return tmp_path / "run"

    if named:
        monkeypatch.setenv("PREFECT_LOCAL_STORAGE_PATH", str(tmp_path / "mine"))
    else:
        monkeypatch.delenv("PREFECT_LOCAL_STORAGE_PATH", raising=False)
    monkeypatch.setattr(library, "retrain_flow", flow)
    monkeypatch.setattr(library, "check_runs", lambda folder: calls.append(("checked", folder)))
    monkeypatch.setattr(library, "start_prefect_server", lambda: calls.append("server"))
    monkeypatch.setattr(library, "open_store", lambda given, **how: (given.name, how))
    monkeypatch.setattr(library.announce, "show_cached", lambda: calls.append("cached"))
    monkeypatch.setattr(library, "Run", lambda folder, store: SimpleNamespace(folder=folder, store=store))
    made: Any = library.retrain(recipe, tmp_path / "runs")
    assert calls == [
        ("checked", tmp_path / "runs"),
        "server",
        (recipe, tmp_path / "runs", not named),
        "cached",
    ]
    assert (made.folder, made.store) == (tmp_path / "run", ("toy", {"hub_needed": False}))
    library.retrain(recipe)
    assert calls[4] == ("checked", Path("runs"))
