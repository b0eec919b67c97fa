"""A scheduled run whose teacher's account runs dry fails with the endpoint's sentence, and trains on nothing."""

from pathlib import Path

import pytest
from prefect.client.schemas.objects import State

from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.retrain import retrain
from tests.endpoint import KEY, Endpoint
from tests.flows.commands import TOY
from tests.tasks.endpoint_answers import First, error, good


@pytest.mark.long
def test_a_run_whose_account_runs_dry_fails_with_the_reason_and_the_next_one_asks_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_server: None
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint = Endpoint(First(error(402, "Insufficient credits. Add more."), after=20))
    teacher = {"model": "toy", "base_url": endpoint.url, "patience": 5}
    teacher |= {"prices": {"prompt": 1.0, "completion": 1.0}, "budget_usd": 1.0}
    overrides = [
        *("environment={name: echo, settings: {words: 1}}", "guards=[]", "grpo=off", "gate.max_overlap=1.0"),
        *(f"teacher={teacher}", f"store.path={tmp_path / 'artifacts'}", "windows.collect.size=40"),
    ]
    recipe = load_recipe(TOY, overrides)

    def ran() -> State:
        return retrain(recipe=recipe, runs=tmp_path / "runs", return_state=True)

    failed = ran()
    assert failed.is_failed()
    assert "Insufficient credits. Add more." in str(failed.message)
    assert "episodes are finished and kept" in str(failed.message)
    assert not list((tmp_path / "artifacts/models").glob("local/*-sft"))
    request_count = len(endpoint.requests)
    endpoint.turns = [good]
    assert ran().is_completed()
    assert len(endpoint.requests) - request_count < 40, "what was finished is not asked for again"
