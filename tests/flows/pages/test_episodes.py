"""Episodes in the page: rows, transcripts, a budget; nothing in them ends the script element that holds them."""

import json
from pathlib import Path

from apprentice.flows.pages.episode_files import EpisodeFiles
from apprentice.flows.pages.episodes import HELD_OUT, EpisodeSource, embedded, transcript
from tests.flows.pages.hostile_report import HOSTILE, rollout
from tests.tasks.evaluations import episode

COLUMNS = ("source", "place", "seed", "sample", "reward", "kind", "turns", "tokens", "slices")


def written(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def test_a_row_names_kind_slices_and_tokens(tmp_path: Path):
    records = [episode(0, 1.0, traits='{"terms": 3}'), episode(1, None, broken="gone"), episode(2, 0.4)]
    evaluated = written(tmp_path / "e.jsonl", [each.line() for each in records])
    bought = written(tmp_path / "r.jsonl", [rollout(number).line() for number in range(4)])
    evaluation_texts = frozenset({"question 3?"})
    data = json.loads(
        embedded(
            [
                EpisodeSource("GRPO", HELD_OUT, evaluated),
                EpisodeSource("Teacher", "collected", bought, evaluation_texts),
            ],
            set(),
        )
    )
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in data["rows"]]
    kinds = [data["kinds"][row["kind"]] for row in rows]
    assert kinds[:3] == ["right", "environment failed", "partly right"]
    assert kinds[3:] == ["wrong answer", "kept", "kept", "stands in the evaluation set"]
    assert [data["slices"][each] for each in rows[0]["slices"]] == ["terms 3"]
    assert (rows[0]["tokens"], rows[3]["tokens"]) == (None, 20)
    messages, correct, _, facts = data["transcripts"][3]
    assert [role for role, *_ in messages] == ["system", "user", "assistant", "tool"]
    assert data["texts"][messages[1][1]] == "Question 0?"
    assert data["texts"][correct] == "7"
    assert facts["prompt_tokens"] == 100


def test_a_transcript_has_the_rewards_parts_and_the_tokens_where_they_were_recorded():
    scored = episode(0, 0.5, scores='{"correct": 0.5, "greens": 0.4}', prompt_tokens=90, completion_tokens=12)
    assert transcript(scored.line())["facts"] == {
        "reward: correct": 0.5,
        "reward: greens": 0.4,
        "prompt_tokens": 90,
        "completion_tokens": 12,
    }
    older = json.loads(scored.line())
    for name in ("scores", "prompt_tokens", "completion_tokens"):
        del older[name]
    assert transcript(json.dumps(older).encode())["facts"] == {}


def test_a_last_text_is_a_turn_of_its_transcript_and_kept_where_it_is_scored(tmp_path: Path):
    said = {"role": "assistant", "content": "We do not refund it."}
    record = rollout(1).model_copy(update={"reward": 1.0, "failed_at": "", "takes_text": True})
    record = record.model_copy(update={"messages": [*record.messages, said]})
    lines = [each.line() for each in (record, record.model_copy(update={"takes_text": False}))]
    files = [EpisodeSource("Teacher", "collected", written(tmp_path / "r.jsonl", lines))]
    data = json.loads(embedded(files, set()))
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in data["rows"]]
    assert [(data["kinds"][row["kind"]], row["turns"]) for row in rows] == [("kept", 2), ("no tool call", 2)]
    assert transcript(lines[0])["messages"][-1] == {"role": "assistant", "content": said["content"], "calls": []}


def test_what_the_filter_dropped_of_a_student_that_thinks_has_its_cause(tmp_path: Path):
    record = rollout(1).model_copy(update={"reward": 1.0, "failed_at": ""})
    files = [EpisodeSource("Teacher", "collected", written(tmp_path / "r.jsonl", [record.line()]))]
    checked = [files[0]._replace(thoughts=lambda turn, tools: "thought over its budget")]
    assert [json.loads(embedded(each, set()))["kinds"] for each in (files, checked)] == [
        ["kept"],
        ["thought over its budget"],
    ]


def test_hostile_text_stays_within_its_script_element_and_comes_out_as_it_went_in(tmp_path: Path):
    records = [
        episode(number, 0.0, messages=[{"role": "user", "content": text}, {"role": "assistant", "content": text}])
        for number, text in enumerate(HOSTILE)
    ]
    text = embedded(
        [EpisodeSource("GRPO", HELD_OUT, written(tmp_path / "e.jsonl", [each.line() for each in records]))], set()
    )
    assert "<" not in text
    assert set(HOSTILE) <= set(json.loads(text)["texts"])


def test_within_a_budget_the_first_transcripts_are_kept_and_the_rest_counted(tmp_path: Path):
    records = [episode(n, 0.0, messages=[{"role": "user", "content": f"{n} " + "x" * 1000}]) for n in range(100)]
    source = EpisodeSource("GRPO", HELD_OUT, written(tmp_path / "e.jsonl", [each.line() for each in records]))
    text = embedded([source], {90, 91}, budget=20_000)
    data = json.loads(text)
    assert len(text) < 22_000
    assert (len(data["rows"]), data["left_out"]) == (100, 0)
    assert data["transcripts"][90]
    assert data["transcripts"][91]
    assert 5 < sum(each is not None for each in data["transcripts"]) < 20
    assert json.loads(embedded([source], set(), budget=2_000))["left_out"] > 50


def test_a_thought_stands_apart_from_the_call_that_it_leads_to_and_is_found(tmp_path: Path):
    record = episode(0, 1.0)
    record.messages[2]["reasoning_content"] = "47 + 30 = 77."
    shown = transcript(record.line())["messages"]
    assert [each["role"] for each in shown] == ["system", "user", "thought", "assistant", "tool"]
    assert shown[2] == {"role": "thought", "content": "47 + 30 = 77.", "calls": []}
    assert shown[3]["calls"] == ['answer({"answer": "7"})']
    files = [EpisodeSource("GRPO", "held out", written(tmp_path / "e.jsonl", [record.line()]))]
    found = EpisodeFiles(files, [1])
    assert found.search("30 = 77") == [0]
    assert json.loads(embedded(files, set()))["texts"].count("47 + 30 = 77.") == 1
