"""Collection against a real OpenAI-compatible server and a real environment server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Questions, Rollouts
from apprentice.tasks.cards.card import write_card
from apprentice.tasks.collect import collect, collect_shard, play_one
from apprentice.tasks.endpoints.budget import Budget
from apprentice.tasks.endpoints.dialect import read_key
from apprentice.tasks.endpoints.teacher import Spent, Teacher
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.journal import check_initial_settings, journal
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.filter import filter_rollouts
from apprentice.tasks.reporting.errors import BudgetReached, Stop
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import CollectSpec, Window
from tests.endpoint import KEY, Endpoint, call
from tests.tasks.evaluations import published
from tests.tasks.players.test_play import Leaving
from tests.tokenizers import build_tokenizer

SCRIPTED = TeacherSpec(scripted_error_rate=0.1)


@pytest.fixture
def play(
    chain_sum: EnvironmentSpec, server: EnvironmentServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Any]:
    """Plays one episode against an endpoint that says `turns`; gives the record and the endpoint."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    environment = chain_sum.make(Session(server))
    teachers: list[Teacher] = []

    def once(*turns: Any, **settings: Any) -> tuple[Record, Endpoint]:
        endpoint = Endpoint(*turns)
        spec = TeacherSpec.model_validate({"model": "toy"} | settings)
        budget = Budget(spec.prices, spec.budget_usd, tmp_path / "spent")
        teachers.append(Teacher(spec, endpoint.url, asks=3, budget=budget))
        return play_one(environment, 1, teachers[-1], chain_sum).record, endpoint

    yield once
    for teacher in teachers:
        teacher.close()
    environment.close()


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ([call(arguments="{")], "malformed arguments"),
        ([call(name="reply")], "unknown tool"),
        ([call(arguments="{}")], "arguments off the schema"),
        ([], "no tool call"),
    ],
)
def test_a_malformed_answer_is_asked_for_again_and_its_tokens_count(play: Any, bad: Any, cause: str):
    record, endpoint = play(bad, [call()])
    assert record.failed_at == ""
    assert record.asked_again == cause
    assert (record.attempts, record.prompt_tokens) == (2, 20)
    assert len(endpoint.requests) == 2


def test_after_the_last_ask_the_episode_is_a_failure_at_the_teacher(play: Any):
    record, endpoint = play([])
    assert record.failed_at == "teacher"
    assert record.reward is None
    assert len(endpoint.requests) == 3


def test_the_request_asks_for_one_call_and_shows_the_students_prompt(play: Any, chain_sum: EnvironmentSpec):
    record, endpoint = play([call()])
    request = endpoint.requests[0]
    assert (request["tool_choice"], request["parallel_tool_calls"]) == ("required", False)
    assert request["messages"] == record.messages[:2]
    assert request["messages"][0]["content"] == chain_sum.make().instructions


def test_of_several_calls_the_first_counts_and_the_record_says_so(play: Any):
    record, endpoint = play([call(), call(arguments='{"answer": "2"}')])
    assert (record.failed_at, record.noted, len(endpoint.requests)) == ("", "2 calls, the first counts", 1)
    assert [len(message.get("tool_calls", [])) for message in record.messages] == [0, 0, 1, 0]


def test_a_recipe_may_add_and_remove_fields_of_the_request(play: Any):
    request = {"reasoning_effort": "low", "parallel_tool_calls": None}
    _, endpoint = play([call()], temperature=None, request=request)
    assert endpoint.requests[0]["reasoning_effort"] == "low"
    assert not {"temperature", "parallel_tool_calls"} & endpoint.requests[0].keys()


def test_the_endpoints_own_messages_are_kept_where_the_recipe_asks_for_them(
    context: StageContext, chain_sum: EnvironmentSpec, server: EnvironmentServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    context.run.servers = StandingServers({"reasoning_gym": server}, Endpoint([call()]).url)
    spec, window = CollectSpec(raw=True), Window(start=0, size=3)
    collect_shard.body(context, spec, TeacherSpec(model="toy"), chain_sum, window)
    rows = [json.loads(line) for line in (context.out / "rollouts.jsonl").read_text().splitlines()]
    own = [json.loads(row["raw"])["2"] for row in rows]
    assert all(message["tool_calls"][0]["id"] == "0" for message in own)
    assert all(
        "content" in message and "raw" not in json.dumps(row["messages"])
        for message, row in zip(own, rows, strict=True)
    )


def test_a_refused_key_stops_at_once_and_is_not_shown(play: Any):
    with pytest.raises(Stop) as stop:
        play(401)
    assert "OPENAI_API_KEY" in str(stop.value)
    assert KEY not in repr(stop.value) + str(stop.value.__cause__) + str(stop.value.__context__.__class__)


@pytest.mark.parametrize("turns", [0, 1])
def test_no_turn_is_bought_while_the_environment_is_away(
    chain_sum: EnvironmentSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, turns: int
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint = Endpoint([call("guess", '{"number": 1}')])
    teacher = Teacher(TeacherSpec(model="toy"), endpoint.url, asks=3, budget=Budget(None, None, tmp_path / "spent"))
    record = play_one(Player(Leaving(turns)), 9, teacher, chain_sum).record
    teacher.close()
    assert len(endpoint.requests) == record.attempts == turns
    assert (record.failed_at, record.reward) == ("environment", None)


def test_retry_after_is_honoured(play: Any):
    record, endpoint = play((429, {"Retry-After": "1"}), [call()])
    assert record.failed_at == ""
    assert endpoint.times[1] - endpoint.times[0] >= 1.0


@pytest.mark.parametrize("trouble", [500, 503, 429, 408, "cut", "garbled", "slow"])
def test_what_passes_is_tried_again(play: Any, trouble: Any):
    record, endpoint = play(trouble, [call()], timeout=1.0)
    assert record.failed_at == ""
    assert record.attempts == len(endpoint.requests) == 2


@pytest.mark.long
def test_requests_keep_to_the_rate_that_is_set(play: Any):
    _, endpoint = play([], requests_per_minute=60)
    assert endpoint.times[-1] - endpoint.times[0] > 1.8  # three askings, one a second


def test_what_does_not_pass_is_tried_again_for_a_bounded_time(play: Any):
    with pytest.raises(Stop, match=r"has not answered for 1 s \(status 500: refused"):
        play(500, patience=1.0)


def test_a_refusal_that_does_not_pass_is_of_this_episode_alone_and_says_why_without_the_key(play: Any):
    record, endpoint = play(400)
    assert (record.failed_at, record.reward, len(endpoint.requests)) == ("teacher's endpoint", None, 3)
    assert "your key is Bearer ***" in record.cause
    assert KEY not in record.model_dump_json()


def test_an_answer_without_a_choice_is_no_answer_of_the_teacher(play: Any):
    record, endpoint = play(None, [call()])
    assert (record.failed_at, record.asked_again, len(endpoint.requests)) == ("", "", 2)


def test_an_episode_that_does_not_fit_the_budget_is_not_begun(play: Any):
    with pytest.raises(BudgetReached):
        play([call()], prices={"prompt": 1.0, "completion": 1.0}, budget_usd=0.0001)


def test_a_request_that_never_left_costs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chain_sum):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    spec = TeacherSpec.model_validate(
        {"model": "toy", "prices": {"prompt": 1.0, "completion": 1.0}, "budget_usd": 1.0, "patience": 0.1}
    )
    budget = Budget(spec.prices, spec.budget_usd, tmp_path / "spent")
    teacher = Teacher(spec, "http://127.0.0.1:9/v1", 1, budget)
    with pytest.raises(Stop, match="has not answered"):
        teacher.reply([{"role": "user", "content": "?"}], [], Spent())
    teacher.close()
    assert budget.spent == 0.0


def test_an_episode_is_priced(play: Any):
    record, _ = play([call()], prices={"prompt": 1.0, "completion": 10.0})
    assert record.cost_usd == pytest.approx((10 * 1.0 + 2 * 10.0) / 1_000_000)


def test_a_key_can_come_from_a_prefect_secret_block(monkeypatch: pytest.MonkeyPatch, prefect_server):
    from prefect.blocks.system import Secret

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    Secret(value=KEY).save("teacher-key", overwrite=True)  # type: ignore[arg-type, unused-coroutine]
    assert read_key(TeacherSpec(key_block="teacher-key")) == KEY
    with pytest.raises(Stop, match="no Prefect Secret block named another"):
        read_key(TeacherSpec(key_block="another"))


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(Stop, match="OPENAI_API_KEY is not set"):
        Teacher(TeacherSpec(), "http://127.0.0.1:9/v1", 1, Budget(None, None, tmp_path / "spent"))


# --- the stage --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    settings = '{"dataset": "chain_sum"}'
    with local_server(
        "apprentice.envs.serving.scripted_teacher", "--environment", "reasoning_gym", "--settings", settings
    ) as url:
        yield f"{url}/v1"


WINDOW = Window(start=0, size=40)


@pytest.fixture
def scripted_bench(context: StageContext, scripted: str, server: EnvironmentServer) -> StageContext:
    context.run.servers = StandingServers({"reasoning_gym": server}, scripted)
    return context


def collected(
    context: StageContext, chain_sum: EnvironmentSpec, window: Window = WINDOW
) -> tuple[dict[str, Any], bytes]:
    counts = collect_shard.body(context, CollectSpec(), SCRIPTED, chain_sum, window)
    return counts, (context.out / "rollouts.jsonl").read_bytes()


def test_two_collections_give_the_same_bytes(scripted_bench: StageContext, chain_sum: EnvironmentSpec):
    _, first = collected(scripted_bench, chain_sum)
    (scripted_bench.scratch / "episodes.jsonl").unlink()
    assert collected(scripted_bench, chain_sum)[1] == first


def test_an_interrupted_collection_goes_on_and_its_torn_line_is_played_again(scripted_bench, chain_sum):
    counts, whole = collected(scripted_bench, chain_sum)
    journal = scripted_bench.scratch / "episodes.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:10]) + lines[10][:50])
    again, rest = collected(scripted_bench, chain_sum)
    assert (again, rest) == (counts, whole)
    assert journal.read_bytes().splitlines(keepends=True)[:10] == lines[:10]


def test_a_journal_that_two_collections_wrote_at_once_gives_the_same_rollouts(scripted_bench, chain_sum):
    counts, whole = collected(scripted_bench, chain_sum)
    journal = scripted_bench.scratch / "episodes.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    for written in (lines + lines[3:], [*lines[:6], lines[7][:40] + b"\n", *lines[:2]]):
        journal.write_bytes(b"".join(written))
        assert collected(scripted_bench, chain_sum) == (counts, whole)


def test_a_second_collector_of_the_same_work_is_refused(scripted_bench: StageContext, chain_sum: EnvironmentSpec):
    collected(scripted_bench, chain_sum)
    initial_settings = json.loads((scripted_bench.scratch / "settings.json").read_text())["settings"]
    with journal(scripted_bench.scratch, initial_settings, print), pytest.raises(Stop, match="Another run is playing"):
        collected(scripted_bench, chain_sum)


def test_going_on_under_other_settings_is_refused_and_the_difference_is_shown(scripted_bench: StageContext, chain_sum):
    collected(scripted_bench, chain_sum)
    with pytest.raises(Stop, match=r"teacher\.temperature: 1\.0 → 0\.5"):
        collect_shard.body(
            scripted_bench, CollectSpec(), SCRIPTED.model_copy(update={"temperature": 0.5}), chain_sum, WINDOW
        )


def test_a_budget_that_is_used_up_ends_cleanly_and_a_larger_one_goes_on(scripted_bench: StageContext, chain_sum):
    prices = {"prompt": 1.0, "completion": 1.0}

    def collect_for(budget: float) -> dict[str, Any]:
        teacher = TeacherSpec.model_validate(SCRIPTED.model_dump() | {"prices": prices, "budget_usd": budget})
        return collect_shard.body(scripted_bench, CollectSpec(), teacher, chain_sum, WINDOW)

    journal = scripted_bench.scratch / "episodes.jsonl"
    with pytest.raises(Stop, match=r"The budget of 0\.005 USD is used up: 0\.00\d+ USD went into \d+ of 40 episodes"):
        collect_for(0.005)
    bought = journal.read_bytes()
    records = [json.loads(line) for line in bought.splitlines()]
    assert 0 < len(records) < 40
    assert 0.002 < sum(record["cost_usd"] for record in records) <= 0.005
    counts = collect_for(1.0)
    assert counts["episodes"] == 40
    assert journal.read_bytes().startswith(bought)


@pytest.fixture(scope="module")
def erring() -> Iterator[str]:
    settings = '{"dataset": "chain_sum"}'
    with local_server(
        *("apprentice.envs.serving.scripted_teacher", "--environment", "reasoning_gym", "--settings", settings),
        *("--error-rate", "0.999999"),
    ) as url:
        yield f"{url}/v1"


@pytest.mark.long
def test_every_mistake_of_a_script_meets_its_rule_of_the_filter(
    scripted_bench: StageContext, erring: str, chain_sum: EnvironmentSpec
):
    scripted_bench.run.servers = StandingServers(
        {"reasoning_gym": scripted_bench.run.servers.environment("reasoning_gym")}, erring
    )
    counts, lines = collected(scripted_bench, chain_sum, Window(start=0, size=150))
    store = scripted_bench.run.store
    none = dict(collect=0, grpo=0, evaluate=0, dropped_from_grpo=0)
    questions = published(store, Questions, "q" * 20, {"questions.jsonl": ""}, none)
    bought = published(store, Rollouts, "r" * 20, {"rollouts.jsonl": lines.decode()}, counts)
    found = filter_rollouts.body(scripted_bench, bought, questions)
    assert set(found["dropped"]) == {"failed at the teacher", "wrong answer"}
    assert all(number >= 3 for number in found["dropped"].values()), found

    records = [json.loads(line) for line in lines.splitlines()]
    reasons = {record["asked_again"].partition(";")[0] for record in records} - {""}
    assert reasons == {"malformed arguments", "unknown tool", "arguments off the schema", "no tool call"}
    failed = [record for record in records if record["failed_at"]]
    assert {record["asked_again"].count(";") for record in failed} == {2}
    assert found["dropped"]["failed at the teacher"] == len(failed) == counts["failed"]
    corrected = [record for record in records if record["asked_again"] and not record["failed_at"]]
    assert {record["attempts"] for record in corrected} == {2, 3}

    kept = [json.loads(line) for line in (scripted_bench.out / "kept.jsonl").read_text().splitlines()]
    assert [record for record in kept if record["asked_again"]] == corrected
    answers = [
        json.loads(record["messages"][2]["tool_calls"][0]["function"]["arguments"])["answer"]
        for record in records
        if record["reward"] is not None and record["reward"] < 1.0
    ]
    assert any("step by step" in answer for answer in answers)
    assert any(answer.startswith('"') for answer in answers)
    assert any(answer.lstrip("-").isdigit() for answer in answers), "a near miss"


# --- shards -----------------------------------------------------------------------------------------------------------


def in_shards(work: RunContext, shards: int, task: EnvironmentSpec, runner: Any = None) -> Rollouts:
    from prefect import flow

    @flow(task_runner=runner)
    def one() -> Rollouts:
        return collect(work, CollectSpec(shards=shards), SCRIPTED, task, WINDOW)

    return one()


def rollouts(work: RunContext, artifact: Rollouts) -> bytes:
    return (work.store.fetch(artifact) / "rollouts.jsonl").read_bytes()


def of_project(work: RunContext, project: str) -> RunContext:
    return RunContext(LocalStore(work.store.root, project, describe=write_card), work.servers)


@pytest.mark.long
def test_shards_on_threads_or_processes_make_the_dataset_of_one(
    scripted_bench: StageContext, chain_sum, prefect_server
):
    from prefect.task_runners import ProcessPoolTaskRunner

    work = scripted_bench.run
    whole = in_shards(of_project(work, "whole"), 1, chain_sum)
    threads = in_shards(of_project(work, "threads"), 3, chain_sum)
    processes = in_shards(of_project(work, "processes"), 2, chain_sum, ProcessPoolTaskRunner(max_workers=2))
    assert whole.episodes == 40
    assert rollouts(work, whole) == rollouts(work, threads) == rollouts(work, processes)
    assert whole.key == threads.key == processes.key


@pytest.mark.long
def test_a_shard_that_is_there_is_not_collected_again(scripted_bench: StageContext, chain_sum, prefect_server):
    work = scripted_bench.run
    made = in_shards(work, 4, chain_sum)
    refs = work.store.root / "datasets" / "local"
    (refs / "toy-rollouts" / "refs" / made.key).unlink()
    shards = sorted((refs / "toy-rollout-shards" / "refs").iterdir(), key=lambda ref: ref.name)
    shards[0].unlink()
    before = {ref: ref.stat().st_mtime_ns for ref in shards[1:]}
    again = in_shards(work, 4, chain_sum)
    assert rollouts(work, again) == rollouts(work, made)
    assert shards[0].exists()
    assert before == {ref: ref.stat().st_mtime_ns for ref in shards[1:]}


def test_going_on_in_another_number_of_shards_is_refused(scripted_bench: StageContext, chain_sum):
    check_initial_settings(scripted_bench.scratch / "settings.json", {"shards": 1})
    with pytest.raises(Stop, match="shards: 1 → 2"):
        collect.body(scripted_bench, CollectSpec(shards=2), SCRIPTED, chain_sum, WINDOW)


# --- what a person sees -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_an_outage_is_told_in_the_terminal_and_in_prefects_log(
    scripted_bench: StageContext, chain_sum, prefect_server, caplog, capfd
):
    scripted_bench.run.servers = StandingServers(
        {"reasoning_gym": EnvironmentServer(url="http://127.0.0.1:9", patience=0.5)},
        scripted_bench.run.servers.teacher(),
    )
    with pytest.raises(Stop, match=r"The environment is out of reach: http://127.0.0.1:9 was down"):
        in_shards(scripted_bench.run, 1, chain_sum)
    sentence = "http://127.0.0.1:9 does not answer; waiting up to"
    assert sentence in capfd.readouterr().out
    assert [record for record in caplog.records if record.name == "prefect.task_runs" and sentence in record.message]


# --- the record -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_dataset_loads_and_trl_trains_on_it_as_it_stands(
    scripted_bench: StageContext, chain_sum, prefect_server, tmp_path
):
    """The ids that TRL's SFTTrainer makes of the published lines are those of the conversation itself."""
    from datasets import load_dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    from tests.tasks.test_one_prompt import tiny_model

    scripted_bench.run.store.describe = write_card
    made = in_shards(scripted_bench.run, 1, chain_sum)
    folder = scripted_bench.run.store.fetch(made)
    dataset = load_dataset(str(folder), "rollouts", split="train", cache_dir=str(tmp_path / "hf"))
    assert dataset.num_rows == 40
    records = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    tokenizer = build_tokenizer(chain_sum, [record["messages"][1]["content"] for record in records])
    trainer = SFTTrainer(
        model=tiny_model(tokenizer),
        processing_class=tokenizer,
        train_dataset=dataset,
        args=SFTConfig(str(tmp_path / "sft"), report_to="none", use_cpu=True, bf16=False, max_length=2048),
    )
    for row, record in zip(trainer.train_dataset, records, strict=True):  # type: ignore[arg-type]
        expected = tokenizer.apply_chat_template(
            record["messages"], tools=json.loads(record["tools"]), tokenize=True, return_dict=False
        )
        assert row["input_ids"] == expected


@pytest.mark.long
def test_the_card_explains_every_column(scripted_bench: StageContext, chain_sum, prefect_server):
    scripted_bench.run.store.describe = write_card
    made = in_shards(scripted_bench.run, 1, chain_sum)
    card = (scripted_bench.run.store.fetch(made) / "README.md").read_text()
    columns = json.loads(rollouts(scripted_bench.run, made).splitlines()[0])
    assert all(f"| `{column}` | " in card for column in columns)
