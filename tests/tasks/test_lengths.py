"""max_length is measured on the rows as SFT trains them: it cuts at most one in a hundred, and leaves a margin."""

import json
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.tools import tools_text
from apprentice.tasks.artifacts.types import BaseStudent, KeptRollouts
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.rendering import row_ids, training_row
from apprentice.tasks.lengths import lengths, summarise
from apprentice.tasks.settings.spec import LengthsSpec
from tests.tasks.evaluations import published
from tests.tokenizers import build_tokenizer

LONG = 3
"""Of a hundred rows."""


@pytest.fixture
def stats(context: StageContext, chain_sum: EnvironmentSpec, tmp_path: Path) -> dict[str, Any]:
    """What the stage counts over 97 short rows and three long ones."""
    tokenizer = build_tokenizer(chain_sum, ["1 + 1 =", "2 + 2 ="])
    model = tmp_path / "student"
    tokenizer.save_pretrained(model)
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    files = {path.name: path.read_text() for path in model.iterdir()}
    student = published(context.run.store, BaseStudent, "s" * 20, files, {"parameters": 1})
    instance = chain_sum.make()
    call = {"type": "function", "function": {"name": "answer", "arguments": '{"answer": "3"}'}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    reply = {"role": "tool", "name": "answer", "content": "OK."}
    lines = []
    for seed in range(100):
        question = "1 + 2 =" + " 7" * (100 * (seed < LONG))
        messages = [*prompt(instance, question), said, reply]
        lines.append(json.dumps({"seed": seed, "messages": messages, "tools": tools_text(instance.tools)}) + "\n")
    counts = {"episodes": 100, "kept": 100, "dropped": {}}
    kept = published(context.run.store, KeptRollouts, "k" * 20, {"kept.jsonl": "".join(lines)}, counts)
    found = lengths.body(context, LengthsSpec(), kept, student)
    first = json.loads(lines[-1])
    whole = training_row(first["messages"], json.loads(first["tools"]))
    return found | {"short": len(row_ids(tokenizer, whole))}


def test_a_row_of_the_99th_percentile_fits_with_the_margin(stats: dict[str, Any]):
    assert stats["p50"] == stats["p95"] == stats["short"]
    assert stats["p99"] > stats["short"] + 100
    assert stats["p99"] + 16 <= stats["max_length"] < stats["p99"] + 16 + 8
    assert stats["max_length"] % 8 == 0
    assert stats["truncated"] == 0


def test_the_measured_lengths_and_the_picture_are_published(stats: dict[str, Any], context: StageContext):
    kept = json.loads((context.out / "lengths.json").read_text())
    assert sorted(kept["lengths"]) == [stats["short"]] * (100 - LONG) + [stats["longest"]] * LONG
    assert (context.out / "histogram.png").stat().st_size > 1000


def test_no_length_exceeds_what_the_model_can_read_and_what_is_cut_is_counted():
    found = summarise([100] * 50 + [200] * 50, LengthsSpec(margin=16, multiple_of=8), positions=128)
    assert (found["max_length"], found["truncated"], found["longest"]) == (128, 50, 200)
    assert summarise([100] * 10, LengthsSpec(margin=0, multiple_of=1), positions=128)["max_length"] == 100
