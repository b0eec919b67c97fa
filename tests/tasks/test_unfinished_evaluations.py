"""An endpoint's evaluation that is not whole is resumed on another day, and counts as of the date that it began on."""

import json
import shutil
from datetime import date, timedelta
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.types import Evaluation, Questions
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.evaluate import endpoint_as_of, evaluate_endpoint
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import EndpointSpec
from apprentice.tasks.settings.spec import EvaluateSpec
from tests.endpoint import Endpoint, call
from tests.tasks.evaluations import episode, published
from tests.tasks.test_evaluate import question

TODAY = date(2024, 3, 1)
SPEC = EvaluateSpec(questions=6, max_new_tokens=8)
PRICES = {"prompt": 0.0, "completion": 10.0}
"""An answer costs 0.00002 USD."""


class Bench:
    """One endpoint's evaluation, as the command gives it from day to day."""

    def __init__(self, run: RunContext, task: EnvironmentSpec):
        self.run = run
        self.task = task
        rows = [
            {"purpose": "evaluate", "seed": seed, "question": question(task, seed), "used": True} for seed in range(6)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        counted = {"collect": 0, "grpo": 0, "evaluate": 6, "dropped_from_grpo": 0}
        self.questions = published(run.store, Questions, "q" * 20, {"questions.jsonl": lines}, counted)

    def given(self, **changed: Any) -> tuple[EvaluateSpec, EndpointSpec, EnvironmentSpec, Questions]:
        of_spec = {name: changed.pop(name) for name in ("samples", "max_new_tokens") if name in changed}
        endpoint = EndpointSpec.model_validate({"base_url": "http://there/v1", "model": "toy"} | changed)
        return SPEC.model_copy(update=of_spec), endpoint, self.task, self.questions

    def as_of(self, today: date = TODAY, **changed: Any) -> str:
        return endpoint_as_of(self.run, *self.given(**changed), today)

    def begin(self, as_of: str, answers: int, **changed: Any) -> None:
        key = evaluate_endpoint.key((*self.given(**changed), as_of), {})
        folder = evaluate_endpoint.scratch(self.run, key)
        folder.mkdir(parents=True)
        (folder / "episodes.jsonl").write_bytes(b"".join(episode(place, 1.0).line() for place in range(answers)))

    def finish(self, as_of: str) -> None:
        counts = {"model": "toy", "protocol": "parity", "cost_usd": 0.0, "n": 6, "broken": 0, "unfinished": 0}
        counts |= dict.fromkeys(("format_compliance", "accuracy", "mean_score"), 1.0)
        key = evaluate_endpoint.key((*self.given(), as_of), {})
        published(self.run.store, Evaluation, key, {"episodes.jsonl": as_of}, counts)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    sentences: list[str] = []
    monkeypatch.setattr(announce, "say", sentences.append)
    return sentences


@pytest.fixture
def bench(work: RunContext, chain_sum: EnvironmentSpec) -> Bench:
    return Bench(work, chain_sum)


SITUATIONS: dict[str, tuple[dict[str, int], list[str], str]] = {
    "nothing": ({}, [], "2024-03-01"),
    "begun today": ({"2024-03-01": 2}, [], "2024-03-01"),
    "begun yesterday": ({"2024-02-29": 2}, [], "2024-02-29"),
    "begun two days ago": ({"2024-02-28": 2}, [], "2024-02-28"),
    "begun a month ago": ({"2024-02-01": 2}, [], "2024-02-01"),
    "begun years ago": ({"2021-02-01": 2}, [], "2024-03-01"),
    "begun where it is tomorrow already": ({"2024-03-02": 2}, [], "2024-03-02"),
    "every question answered": ({"2024-02-29": 6}, [], "2024-02-29"),
    "two unfinished ones": ({"2024-02-27": 5, "2024-02-29": 1}, [], "2024-02-29"),
    "today's and an older one": ({"2024-02-29": 5, "2024-03-01": 1}, [], "2024-03-01"),
    "begun without an answer": ({"2024-02-29": 0}, [], "2024-03-01"),
    "an older one has answers": ({"2024-02-28": 2, "2024-02-29": 0}, [], "2024-02-28"),
    "finished yesterday": ({}, ["2024-02-29"], "2024-03-01"),
    "finished today": ({}, ["2024-03-01"], "2024-03-01"),
    "begun after a finished one": ({"2024-02-29": 2}, ["2024-02-28"], "2024-02-29"),
    "begun before one that was finished": ({"2024-02-28": 2}, ["2024-02-29"], "2024-03-01"),
    "begun yesterday, finished today": ({"2024-02-29": 2}, ["2024-03-01"], "2024-03-01"),
    "begun under a label": ({"v2": 2}, [], "2024-03-01"),
}
"""Answers of unfinished evaluations by their date, dates of finished ones, and the date that the command counts as."""


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_newest_unfinished_evaluation_is_resumed(situation: str, bench: Bench, said: list[str]):
    answers_by_state, finished, wanted = SITUATIONS[situation]
    for as_of, answers in answers_by_state.items():
        bench.begin(as_of, answers)
    for as_of in finished:
        bench.finish(as_of)
    assert bench.as_of() == wanted
    assert len(said) == (wanted != str(TODAY))
    assert all(f"counts as of {wanted}" in sentence and f"--as-of {TODAY}" in sentence for sentence in said)


@pytest.mark.parametrize(
    "changed",
    [
        *({"samples": 2}, {"max_new_tokens": 9}, {"model": "other"}, {"base_url": "http://elsewhere/v1"}),
        *({"temperature": 0.5}, {"serves_student": True}, {"request": {"reasoning_effort": "low"}}),
    ],
    ids=str,
)
def test_answers_under_other_settings_are_not_mixed(changed: dict[str, Any], bench: Bench):
    bench.begin("2024-02-29", 2)
    assert bench.as_of(**changed) == str(TODAY)


@pytest.mark.parametrize(
    "changed", [{"prices": PRICES, "budget_usd": 1.0}, {"timeout": 5.0}, {"requests_per_minute": 60.0}], ids=str
)
def test_settings_that_change_no_answer_do_not_hinder(changed: dict[str, Any], bench: Bench):
    bench.begin("2024-02-29", 2)
    assert bench.as_of(**changed) == "2024-02-29"


def test_an_evaluation_whose_folder_was_removed_begins_anew(bench: Bench):
    bench.begin("2024-02-29", 2)
    shutil.rmtree(bench.run.store.root / ".scratch")
    assert bench.as_of() == str(TODAY)


@pytest.mark.parametrize(("ends_in", "more"), [(402, {}), (503, {"patience": 1.0}), (None, {"budget_usd": 7e-5})])
def test_what_was_bought_before_midnight_is_not_bought_again(
    ends_in: int | None,
    more: dict[str, Any],
    bench: Bench,
    server: EnvironmentServer,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
):
    """A quota, an outage, a budget: three days later the same command ends it, with one ledger for all days."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-test")
    one_by_one = EnvironmentServer(url=server.url, sessions=1)
    turns = [[call()]] if ends_in is None else [*([call()] for _ in range(3)), ends_in]
    endpoint = Endpoint(*turns)

    def evaluated(today: date, **given: Any) -> Evaluation:
        bench.run.servers = StandingServers({"reasoning_gym": one_by_one}, endpoint.url)
        known = bench.given(base_url=endpoint.url, prices=PRICES, max_tokens=2, **given)
        return evaluate_endpoint(bench.run, *known, endpoint_as_of(bench.run, *known, today))

    with pytest.raises(Stop, match="3 of 6 episodes are kept"):
        evaluated(TODAY, **more)
    endpoint.turns = [[call()]]
    endpoint.requests.clear()
    whole = evaluated(TODAY + timedelta(3))
    assert (whole.n, len(endpoint.requests)) == (6, 3)
    assert whole.cost_usd == pytest.approx(6 * 2e-5)
    assert "with its 3 answers and counts as of 2024-03-01" in said[-1]
    assert evaluated(TODAY + timedelta(4)).key != whole.key
    assert len(endpoint.requests) == 9
