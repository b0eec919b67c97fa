"""Conversations that exist become rollouts only as far as the environment confirms them."""

import json
import re
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from huggingface_hub import HfApi

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.echo.text import text_of
from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.foreign.rows import newest_commit, pinned_rows
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.dataset import KnownQuestions, Verifier, show_report, take_rollouts
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.record import Message, Record
from apprentice.tasks.files.json_lines import as_line, read_rows
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import CollectSpec, DatasetSpec
from tests.hub_server import LocalHub
from tests.odd_server import odd_server
from tests.tasks.artifacts.test_hub import hub
from tests.tasks.episodes.test_episode import call
from tests.tasks.evaluations import published
from tests.tasks.test_rescore import ECHO, Patient, bought, echoed, guessed

assert hub  # a fixture

SYSTEM = {"role": "system", "content": "Be nice."}
EVALUATED = 900
"""The seed that the evaluation asks."""


def row(seed: int, said: str = "", **given: Any) -> dict[str, Any]:
    """A rollout of this project, as JSON."""
    return json.loads(echoed(seed, said or text_of(seed, 3), 1.0).line()) | given


def chat(seed: int, said: str = "", **given: Any) -> dict[str, Any]:
    """The same as somebody else wrote it: without seed, environment, tools or system prompt."""
    arguments = {"message": said or text_of(seed, 3)}
    turn = {"role": "assistant", "tool_calls": [{"function": {"name": "echo", "arguments": arguments}}]}
    return {"messages": [{"role": "user", "content": text_of(seed, 3)}, turn]} | given


class Bench:
    """The stage, against an Echo server in this process."""

    def __init__(self, folder: Path, url: str):
        store = LocalStore(folder / "artifacts", "toy")
        server = EnvironmentServer(url=url, sessions=4, patience=0.5)
        self.out = folder / "out"
        self.out.mkdir()
        self.context = StageContext(
            RunContext(store, StandingServers({"echo": server}, None)), "0" * 20, self.out, self.out
        )
        rows = [("collect", seed) for seed in range(12)] + [("evaluate", EVALUATED)]
        questions = [{"purpose": p, "seed": seed, "question": text_of(seed, 3), "used": True} for p, seed in rows]
        counts = {"collect": 12, "grpo": 0, "evaluate": 1, "dropped_from_grpo": 0}
        text = b"".join(map(as_line, questions)).decode()
        self.questions = published(store, Questions, "a" * 20, {"questions.jsonl": text}, counts)

    def __call__(self, spec: DatasetSpec, unverified: str = "drop") -> dict[str, Any]:
        return take_rollouts.body(self.context, spec, ECHO, self.questions, unverified)

    @property
    def taken(self) -> list[Record]:
        return [Record.model_validate(each) for each in read_rows(self.out / "rollouts.jsonl")]

    @property
    def refused(self) -> list[dict[str, str]]:
        return json.loads((self.out / "verification.json").read_text())["left_out"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with odd_server("sound") as url:
        yield Bench(tmp_path, url)


def folder_of(tmp_path: Path, *rows: dict[str, Any], **given: Any) -> DatasetSpec:
    (tmp_path / "rows").mkdir(exist_ok=True)
    (tmp_path / "rows/kept.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return DatasetSpec(path=str(tmp_path / "rows"), **given)


def test_rollouts_of_this_environment_are_taken_to_the_byte(bench: Bench, tmp_path: Path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/rollouts.jsonl").write_bytes(b"".join(record.line() for record in bought()))
    counts = bench(pinned_rows(DatasetSpec(path=str(tmp_path / "rows"))))
    assert (bench.out / "rollouts.jsonl").read_bytes() == (tmp_path / "rows/rollouts.jsonl").read_bytes()
    assert (counts["episodes"], counts["failed"], counts["prompt_tokens"]) == (12, 1, 12 * 7)
    assert bench.refused == []


def test_plain_chat_becomes_the_rollouts_that_a_teacher_would_have_played(bench: Bench, tmp_path: Path):
    bench(folder_of(tmp_path, *(chat(seed) for seed in range(3))))
    assert [(each.seed, each.reward, each.environment) for each in bench.taken] == [
        (n, 1.0, "echo 1") for n in range(3)
    ]
    like = echoed(1, text_of(1, 3), 1.0)
    assert bench.taken[1].messages[:2] == like.messages[:2]
    assert (bench.taken[1].tools, bench.taken[1].correct) == (like.tools, like.correct)
    assert bench.taken[1].messages[3] == {"role": "tool", "name": "echo", "content": "OK."}


@pytest.mark.parametrize("forged", [row(1, said="x"), chat(1, said="x", reward=1.0)])
def test_a_forged_reward_is_replaced_by_the_environments(bench: Bench, tmp_path: Path, forged: Any, capfd):
    bench(folder_of(tmp_path, forged))
    assert [record.reward for record in bench.taken] == [0.0]
    assert "the environment gives another reward" in " ".join(capfd.readouterr().out.split())


@pytest.mark.parametrize(
    ("given", "note"),
    [
        (chat(1) | {"messages": [SYSTEM, *chat(1)["messages"]]}, "the system prompt is replaced"),
        (row(1) | {"messages": [SYSTEM, *row(1)["messages"][1:]]}, "the system prompt is replaced"),
        (chat(1) | {"messages": [*chat(1)["messages"], {"role": "assistant", "content": "Done."}]}, "a closing turn"),
        (chat(1, tools=[{"type": "function", "function": {"name": "echo"}}]), "the tools' schemas are replaced"),
        ({"prompt": text_of(1, 3), "completion": text_of(1, 3)}, "an answer in words is taken as the call"),
        ({"prompt": f"Say this:\n{text_of(1, 3)}", "completion": text_of(1, 3)}, ""),
        ({"prompt": json.dumps({"text": text_of(1, 3)}), "completion": text_of(1, 3)}, ""),
        (chat(1) | {"messages": json.dumps(chat(1)["messages"])}, ""),
        (row(1) | {"messages": [*row(1)["messages"][:3], row(1)["messages"][3] | {"content": "score=1.0"}]}, ""),
    ],
)
def test_what_is_not_an_action_is_the_environments_own(bench: Bench, tmp_path: Path, given: Any, note: str, capfd):
    bench(folder_of(tmp_path, given))
    (taken,) = bench.taken
    assert (taken.seed, taken.reward) == (1, 1.0)
    assert taken.messages[:2] == echoed(1, "x", 1.0).messages[:2]
    assert [message["content"] for message in taken.messages[2:]] in (["", "OK."], [None, "OK."])
    assert note in " ".join(capfd.readouterr().out.split())


WRONG = {"role": "assistant", "tool_calls": [{"name": "echo", "arguments": {"text": "a"}}]}
UNKNOWN = {"role": "assistant", "tool_calls": [{"name": "say", "arguments": {"message": "a"}}]}


@pytest.mark.parametrize(
    ("wrong", "field", "cause"),
    [
        (row(1, environment="wordle 1"), "environment", "it is 'wordle 1', not 'echo 1'"),
        (row(1, cost_usd="much"), "cost_usd", "Input should be a valid number"),
        (row(1, reward="good"), "reward", "Input should be a valid number"),
        (row(1, messages=[]), "messages", "no turn of an assistant"),
        (row(1, messages=None), "messages", "no such column; the row has seed"),
        (row(1, messages=3), "messages", "valid list"),
        (row(1, messages=row(1)["messages"][2:]), "messages", "no question of a user"),
        (chat(1, messages=[*chat(1)["messages"], SYSTEM]), "messages.2", "a message of a system after"),
        (
            chat(1, messages=[chat(1)["messages"][0], WRONG]),
            "messages.1.tool_calls.0",
            "arguments off the schema: echo(",
        ),
        (chat(1, messages=[chat(1)["messages"][0], UNKNOWN]), "messages.1.tool_calls.0", "unknown tool: say("),
        (chat(1, messages=[*chat(1)["messages"], *chat(1)["messages"][1:]]), "messages", "the episode ends after 1"),
        (
            chat(1, messages=[*chat(1)["messages"], {"role": "tool", "content": ""}, {"role": "tool", "content": ""}]),
            "messages.3",
            "a tool's reply to no call",
        ),
        (chat(EVALUATED), "messages", "its question stands in the evaluation set"),
        (row(EVALUATED), "messages", "its question stands in the evaluation set"),
        ({"text": "a"}, "messages", "no such column; the row has text"),
    ],
)
def test_a_row_that_does_not_fit_is_left_out_with_its_place_field_and_cause(
    bench: Bench, tmp_path: Path, wrong: dict[str, Any], field: str, cause: str
):
    bench(folder_of(tmp_path, row(0), wrong), "keep")
    assert [record.seed for record in bench.taken] == [0]
    (left,) = bench.refused
    assert (left["where"], left["field"]) == ("kept.jsonl, line 2", field)
    assert cause in left["cause"]


def test_what_was_taken_is_taken_again_and_its_report_can_be_shown_again(bench: Bench, tmp_path: Path, capfd):
    bench(folder_of(tmp_path, chat(1), chat(1, said="x"), {"text": ""}))
    bench.out.rename(tmp_path / "taken")
    capfd.readouterr()
    assert [left["field"] for left in show_report(tmp_path / "taken")] == ["messages"]
    assert "3 rows of" in capfd.readouterr().out
    bench.out.mkdir()
    bench(DatasetSpec(path=str(tmp_path / "taken")))
    assert (bench.out / "rollouts.jsonl").read_bytes() == (tmp_path / "taken/rollouts.jsonl").read_bytes()
    assert bench.refused == show_report(tmp_path / "rows") == []


def test_where_no_row_is_taken_the_first_cause_is_told(bench: Bench, tmp_path: Path):
    with pytest.raises(Stop, match=r"None of the 2 rows .* kept.jsonl, line 1, environment: it is 'wordle 1'"):
        bench(folder_of(tmp_path, row(1, environment="wordle 1"), {"text": ""}))


def test_a_question_outside_of_the_windows_is_found_among_the_given_seeds(bench: Bench, tmp_path: Path):
    rows = [chat(50), row(70), chat(1)]
    bench(folder_of(tmp_path, *rows))
    assert [record.seed for record in bench.taken] == [70, 1]
    assert [(left["where"], left["verified"]) for left in bench.refused] == [("kept.jsonl, line 1", "no")]
    bench(folder_of(tmp_path, *rows, seeds={"start": 40, "size": 20}))
    assert [record.seed for record in bench.taken] == [50, 70, 1]


def test_a_row_under_another_rows_seed_is_known_by_its_text(bench: Bench, tmp_path: Path):
    bench(folder_of(tmp_path, chat(1) | {"seed": 5}, chat(2) | {"seed": 77}))
    assert [(record.seed, record.reward) for record in bench.taken] == [(1, 1.0), (2, 1.0)]


def test_what_cannot_be_verified_is_kept_only_where_the_recipe_says_so_and_says_it(bench: Bench, tmp_path: Path):
    rows = [chat(1), chat(50), chat(51, reward=0.25), chat(52) | {"seed": 3}]
    bench(folder_of(tmp_path, *rows), "keep")
    assert [(each.verified, each.reward) for each in bench.taken] == [
        ("yes", 1.0),
        ("no", 1.0),
        ("no", 0.25),
        ("no", 1.0),
    ]
    assert [record.seed for record in bench.taken] == [1, -2, -3, -4]
    assert bench.taken[1].messages[0] == bench.taken[0].messages[0]
    (tmp_path / "again").mkdir()
    bench(folder_of(tmp_path / "again", *rows), "drop")
    assert [record.seed for record in bench.taken] == [1]
    assert [left["verified"] for left in bench.refused] == ["no"] * 3


def test_an_unverified_row_holds_no_question_of_the_evaluation(bench: Bench, tmp_path: Path):
    hidden = {"prompt": f"Unlike others: {text_of(EVALUATED, 3).upper()}", "completion": "x"}
    bench(folder_of(tmp_path, chat(1), hidden, {"prompt": "Else", "completion": "x", "reward": 7}), "keep")
    assert [record.seed for record in bench.taken] == [1]
    assert [left["field"] for left in bench.refused] == ["messages", "reward"]


def spoken(record: Record, *without: str) -> dict[str, Any]:
    """A conversation without seed, environment and tools, nor the replies of tools."""
    return {"messages": [message for message in record.messages if message["role"] not in without]}


def turn(*numbers: int) -> Message:
    calls = [call("guess", {"number": number})["tool_calls"][0] for number in numbers]
    return {"role": "assistant", "content": "", "tool_calls": calls}


@pytest.mark.parametrize(
    ("given", "seed", "cause"),
    [
        (spoken(guessed(1, 2)), 2, ""),
        (spoken(guessed(1, 2), "tool"), 2, ""),
        (spoken(guessed(1, 2), "tool", "system"), 2, ""),
        ({"messages": [*guessed(1).messages[:2], turn(1, 2)]}, 2, ""),
        ({"messages": [*guessed(1).messages[:2], turn(1)]}, 2, "the episode goes on where it ended"),
        ({"messages": [*guessed(1).messages[:3], {"role": "tool", "content": "Right."}, turn(2)]}, 2, "another answer"),
        ({"messages": [*guessed(1, 2).messages, *guessed(1, 2).messages[-2:]]}, 2, "the episode ends after 2 turns"),
    ],
)
def test_an_episode_of_several_turns_or_calls_is_played_call_by_call(given: dict[str, Any], seed: int, cause: str):
    found = Verifier(ECHO, KnownQuestions({"which number?": seed}, set()), {})(Player(Patient()), given)
    assert found.cause.startswith(cause)
    assert bool(found.cause) == bool(cause)
    if found.record:
        assert (found.record.reward, found.record.messages[-1]["content"]) == (1.0, "Right.")


def as_lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in rows)


def as_parquet(*rows: dict[str, Any]) -> bytes:
    written = BytesIO()
    Dataset.from_list(list(rows)).to_parquet(written)
    return written.getvalue()


EMPTY = {"role": None, "content": None, "tool_calls": None, "tool_call_id": None, "name": None}


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (lambda one, two: {"rollouts.jsonl": as_lines(one, two)}, ""),
        (lambda one, two: {"a.jsonl": as_lines(one), "b.jsonl": as_lines(two)}, ""),
        (lambda one, two: {"rollouts.jsonl": b"\xef\xbb\xbf" + as_lines(one, two)}, ""),
        (lambda one, two: {"rollouts.jsonl": as_lines(one) + b"\n" + as_lines(two) + b"\r\n  \n"}, ""),
        (lambda one, two: {"rollouts.jsonl": as_lines(one, two).replace(b"\n", b"\r\n")}, ""),
        (lambda one, two: {"rollouts.jsonl": as_lines(one | {"correct": None, "cost_usd": None}, two)}, ""),
        (lambda one, two: {"rollouts.jsonl": as_lines(one | {"cost_usd": float("nan")}, two)}, ""),
        (lambda one, two: {"rollouts.jsonl": as_lines(one | {"tools": json.loads(one["tools"])}, two)}, ""),
        (
            lambda one, two: {
                "rollouts.jsonl": as_lines(one | {"messages": [EMPTY | m for m in one["messages"]]}, two)
            },
            "",
        ),
        (lambda one, two: {"rollouts.jsonl": as_lines(one, two, one)}, "1 rows .* twice .* rollouts.jsonl, line 3"),
        (
            lambda one, two: {"rollouts.jsonl": as_lines(one, two), "kept.jsonl": as_lines(one)},
            "kept.jsonl is left out",
        ),
        (lambda one, two: {"rows.parquet": as_parquet(one, two)}, ""),
        (lambda one, two: {"data/train-00000-of-00001.parquet": as_parquet(one, two)}, ""),
        (
            lambda one, two: {
                "data/train-0-of-2.parquet": as_parquet(one),
                "data/train-1-of-2.parquet": as_parquet(two),
            },
            "",
        ),
    ],
)
def test_the_forms_in_which_rows_come_are_the_same_rows(bench: Bench, tmp_path: Path, form: Any, said: str, caplog):
    one, two = (row(seed, cost_usd=0.0) for seed in (1, 2))
    for name, content in form(one, two).items():
        (tmp_path / "rows" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "rows" / name).write_bytes(content)
    counts = bench(pinned_rows(DatasetSpec(path=str(tmp_path / "rows"))))
    assert (counts["episodes"], counts["prompt_tokens"], counts["cost_usd"]) == (2, 14, 0.0)
    wanted = [Record.model_validate(each).line() for each in (one, two)]
    assert (bench.out / "rollouts.jsonl").read_bytes() == b"".join(wanted)
    assert re.search(said, " ".join(caplog.text.split()))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rollouts.jsonl", b"{}\n{broken\n", "rollouts.jsonl, line 2: this is not JSON"),
        ("rollouts.jsonl", b"{broken\n", "rollouts.jsonl, line 1: this is not JSON"),
        ("rollouts.jsonl", b"\xff\xfe{\n", "rollouts.jsonl, line 1: this is not JSON"),
        ("rollouts.jsonl", b"[1]\n", "rollouts.jsonl, line 1, row: is list"),
        ("rows.json", b"{broken", "rows.json: this is not JSON"),
        ("rows.eval", b"no zip", "rows.eval is not a log of Inspect"),
        ("rollouts.jsonl", b"\n\n", "its files have no row"),
        ("rollouts.jsonl", b"", "holds no rollouts"),
        ("rows.parquet", b"PAR1 not at all", "rows.parquet is not a Parquet file"),
        ("rows.csv", b"a,b\n", "holds no rollouts: no row in a file that ends in .jsonl, .parquet, .json"),
    ],
)
def test_a_file_that_holds_no_rows_is_refused_with_its_place(
    bench: Bench, tmp_path: Path, name: str, content: bytes, said: str
):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / name).write_bytes(content)
    with pytest.raises(Stop, match=said):
        bench(DatasetSpec(path=str(tmp_path / "rows")))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "trial/agent/trajectory.json", "default/train/0.parquet"])
def test_rows_may_lie_in_one_file_or_where_others_write_them(bench: Bench, tmp_path: Path, name: str):
    one = row(1)
    step = {"source": "agent", "tool_calls": [one["messages"][2]["tool_calls"][0]]}
    atif = {"schema_version": "ATIF-v1.6", "steps": [{"source": "user", "message": text_of(1, 3)}, step]}
    forms = {"rows.jsonl": as_lines(one), "rows.json": json.dumps([one]).encode()}
    forms |= {"trial/agent/trajectory.json": json.dumps(atif).encode(), "default/train/0.parquet": as_parquet(one)}
    (tmp_path / "rows" / name).parent.mkdir(parents=True)
    (tmp_path / "rows" / name).write_bytes(forms[name])
    for path in (tmp_path / "rows", tmp_path / "rows" / name):
        bench(pinned_rows(DatasetSpec(path=str(path))))
        assert [(record.seed, record.reward) for record in bench.taken] == [(1, 1.0)]


def test_a_log_of_inspect_is_read_by_its_samples(bench: Bench, tmp_path: Path):
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser
    from inspect_ai.scorer import Score
    from inspect_ai.tool import ToolCall

    said = ToolCall(id="1", function="echo", arguments={"message": text_of(3, 3)})
    messages = [ChatMessageUser(content=text_of(3, 3)), ChatMessageAssistant(content="", tool_calls=[said])]
    sample = EvalSample(id=3, epoch=1, input="", target="", messages=messages, scores={"right": Score(value="C")})
    about = {"created": "2026-01-01T00:00:00+00:00", "task": "echo", "dataset": EvalDataset(), "model": "toy"}
    log = EvalLog(eval=EvalSpec(**about, config=EvalConfig()), samples=[sample])
    for name in ("log.eval", "log.json"):
        write_eval_log(log, str(tmp_path / name))
        bench(DatasetSpec(path=str(tmp_path / name)))
        assert [(record.seed, record.reward) for record in bench.taken] == [(3, 1.0)]
        assert bench.refused == []


def test_rows_are_known_by_their_content_wherever_they_lie(tmp_path: Path):
    spec = pinned_rows(folder_of(tmp_path, row(1)))
    (tmp_path / "rows").rename(tmp_path / "moved")
    assert pinned_rows(DatasetSpec(path=str(tmp_path / "moved"))).in_key() == spec.in_key() == {"content": spec.content}
    named = spec.model_copy(update={"columns": {"reward": "score"}})
    assert named.in_key() == {"content": spec.content, "columns": {"reward": "score"}}
    (tmp_path / "moved/kept.jsonl").write_text(json.dumps(row(9)) + "\n")
    with pytest.raises(Stop, match="other rows than before"):
        pinned_rows(spec.model_copy(update={"path": str(tmp_path / "moved")}))


@pytest.mark.parametrize(
    ("path", "said"),
    [(__file__, "cannot be read: it is no .jsonl"), ("nowhere", "no file or folder"), ("owner/rows", "has a commit")],
)
def test_a_dataset_that_is_nowhere_is_named(path: str, said: str):
    with pytest.raises(Stop, match=said):
        pinned_rows(DatasetSpec(path=path))


def test_a_dataset_of_the_hub_is_taken_at_its_commit_and_refused_like_a_folder(
    hub: LocalHub, bench: Bench, tmp_path: Path
):
    folder_of(tmp_path, row(1), row(2))
    api = HfApi()
    api.create_repo("team/rows", repo_type="dataset")
    upload = partial(api.upload_file, repo_id="team/rows", repo_type="dataset", path_in_repo="kept.jsonl")
    good = upload(path_or_fileobj=tmp_path / "rows/kept.jsonl").oid
    folder_of(tmp_path, row(1, environment="wordle 1"))
    bad = upload(path_or_fileobj=tmp_path / "rows/kept.jsonl").oid
    assert newest_commit("team/rows") == bad
    assert bench(pinned_rows(DatasetSpec(path="team/rows", revision=good)))["episodes"] == 2
    with pytest.raises(Stop, match=r"of team/rows .* kept.jsonl, line 1, environment: it is 'wordle 1'"):
        bench(pinned_rows(DatasetSpec(path="team/rows", revision=bad)))
    with pytest.raises(Stop, match="The Hub has no dataset team/none"):
        pinned_rows(DatasetSpec(path="team/none", revision=good))
    with pytest.raises(Stop, match="The Hub has no dataset team/none"):
        newest_commit("team/none")


def test_a_dataset_may_be_named_in_one_text():
    on_hub = CollectSpec.model_validate({"dataset": f"owner/rows@{'a' * 40}"}).dataset
    assert on_hub == DatasetSpec(path="owner/rows", revision="a" * 40)
    assert CollectSpec.model_validate({"dataset": "some/folder"}).dataset == DatasetSpec(path="some/folder")


def test_in_a_mixture_the_seed_says_which_environment_answers(tmp_path: Path):
    parts = {"one": {"name": "echo", "settings": {"words": 1}}, "two": {"name": "echo", "settings": {"words": 2}}}
    mixture = EnvironmentSpec(name="multi", settings={"parts": parts})
    shown = mixture.make()
    seeds = {part.label: next(seed for seed in range(50) if shown.part(seed) is part) for part in shown.parts()}
    texts = {label: text_of(seed, parts[label]["settings"]["words"]) for label, seed in seeds.items()}
    known = KnownQuestions({texts[label]: seed for label, seed in seeds.items()}, set())
    with odd_server("sound") as url:
        one = EnvironmentServer(url=url, sessions=1, patience=0.5)
        with EnvironmentPool(mixture, one.model_copy(update={"parts": {"echo": one}}), size=1) as pool:
            rows = [{"prompt": text, "completion": text} for text in (*texts.values(), "else")]
            found = [each for _, each in pool.map(Verifier(mixture, known, {}), rows)]
    assert [each.record and (each.record.environment, each.record.reward) for each in found] == [
        ("one: echo 1", 1.0),
        ("two: echo 1", 1.0),
        None,
    ]
    assert found[2].field == "environment"
