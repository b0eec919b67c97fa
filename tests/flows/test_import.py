"""`apprentice import` and `export` as a user gives them: plain chat trains by the printed command, without teacher."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import HfApi

from apprentice.envs.echo.text import text_of
from apprentice.flows.cli.data import _dataset
from apprentice.flows.serving.request_log import RequestLog
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Release, Rollouts
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import DatasetSpec
from tests.flows.commands import BIN, run_command
from tests.hub_server import LocalHub
from tests.tasks.artifacts.test_hub import hub
from tests.tasks.evaluations import published

assert hub  # a fixture

ROWS = 60
RECIPE = {
    "name": "imported",
    "environment": {"name": "echo", "settings": {"words": 1}},
    "teacher": {"base_url": "http://127.0.0.1:9/v1"},  # nobody answers there
    "student": {"build": {"hidden_size": 32, "intermediate_size": 64, "layers": 1, "heads": 2, "max_positions": 256}},
    "windows": {"collect": {"size": 100}, "grpo": {"size": 20}, "evaluate": {"size": 40}},
    "sft": {"epochs": 1, "batch_size": 16, "gradient_accumulation": 1, "learning_rate": 3.0e-3},
    "grpo": "off",
    "evaluate": {"questions": 20, "max_new_tokens": 16, "batch_size": 20},
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a recipe and plain chat: 54 right rows, six wrong ones that claim to be right."""
    (tmp_path / "my recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    rows: list[dict[str, Any]] = []
    for seed in range(ROWS):
        said = text_of(seed, 1) if seed % 10 else "x"
        turns = [{"role": "user", "content": text_of(seed, 1)}, {"role": "assistant", "content": said}]
        rows.append({"chat": turns, "info": {"score": 1.0}})
    rows.append({"chat": [{"role": "user", "content": text_of(200_000_000, 1)}, {"role": "assistant", "content": "x"}]})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row | {"info": {"score": 1.0}}) + "\n" for row in rows))
    return tmp_path


def command(home: Path, *parts: str) -> Any:
    return run_command([str(BIN / "apprentice"), *parts], home)


IMPORT = ("import", "rows.jsonl", "--recipe", "my recipe.yaml", "--messages", "chat", "--reward", "info.score")


@pytest.mark.long
def test_plain_chat_trains_by_the_printed_command_and_asks_no_teacher(home: Path):
    done = command(home, *IMPORT)
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    for line in (
        "61 rows of rows.jsonl",
        "verified by the environment 60 rows.jsonl, line 1",
        "of these with reward 1.0 54 rows.jsonl, line 2",
        "of these: the environment gives another reward 6 rows.jsonl, line 1",
        "refused: its question stands in the evaluation set 1 rows.jsonl, line 61: messages",
    ):
        assert line in said
    name, *parts = shlex.split(done.stdout.strip().splitlines()[-1])
    assert (name, parts[0]) == ("apprentice", "run")
    ran = command(home, *parts)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads((home / ran.stdout.strip().splitlines()[-1] / "report.json").read_text())
    stages = {stage["name"]: stage["state"] for stage in report["stages"]}
    assert (stages["take_rollouts"], stages["filter_rollouts"], stages["sft"]) == ("cached", "ran", "ran")
    assert "collect" not in stages
    assert (report["collect"]["episodes"], report["collect"]["kept"]) == (60, 54)
    (key,) = [row["key"] for row in report["lineage"] if row["stage"] == "take_rollouts"]
    out = command(home, "export", key, "--format", "atif", "--to", "as atif")
    assert out.returncode == 0, out.stdout + out.stderr
    again = command(home, "import", "as atif", "--recipe", "my recipe.yaml")
    assert again.returncode == 0, again.stdout + again.stderr
    store = LocalStore(home / "artifacts", "imported")
    made = [store.at(Rollouts, revision) for revision in store.tags(Rollouts, "").values()]
    texts = {(store.fetch(rollouts) / "rollouts.jsonl").read_bytes() for rollouts in made}
    assert (len(made), len(texts)) == (2, 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (({}, None), {}),
        (({"reward": "info.score"}, "5-9"), {"columns": {"reward": "info.score"}, "seeds": {"start": 5, "size": 5}}),
        (({}, None, "test"), {"split": "test"}),
        (({}, None, None, "easy"), {"config": "easy"}),
    ],
)
def test_the_options_are_the_recipes_fields(home: Path, options: Any, expected: Any):
    path = str(home / "rows.jsonl")
    given = json.loads(_dataset(path, *options))
    assert given == {"path": path} | expected
    assert DatasetSpec.model_validate(given).in_key().items() >= expected.items()


def test_a_dataset_of_the_hub_is_named_with_its_commit(hub: LocalHub):
    HfApi().create_repo("team/rows", repo_type="dataset")
    commit = HfApi().dataset_info("team/rows").sha
    assert json.loads(_dataset("team/rows", {}, None)) == {"path": "team/rows", "revision": commit}
    assert json.loads(_dataset(f"team/rows@{'a' * 40}", {}, None))["revision"] == "a" * 40
    assert json.loads(_dataset("nowhere", {}, None)) == {"path": "nowhere"}


@pytest.mark.long
def test_of_several_splits_train_is_taken_and_another_is_a_choice(home: Path):
    """The remedy of the refusal works, and the printed command names the split."""
    (home / "rows.jsonl").unlink()
    for split, seeds in (("train", range(8)), ("test", range(8, 11))):
        turns = [[{"role": role, "content": text_of(seed, 1)} for role in ("user", "assistant")] for seed in seeds]
        (home / f"rows-{split}.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in turns))
    done = command(home, "import", ".", "--recipe", "my recipe.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 rows of . (split train; not read: test)" in " ".join(done.stdout.split())
    refused = command(home, "import", ".", "--recipe", "my recipe.yaml", "--split", "train[:4]")
    assert refused.returncode == 1
    assert "It has train, test." in " ".join(refused.stdout.split())
    other = command(home, "import", ".", "--recipe", "my recipe.yaml", "--split", "test")
    assert "3 rows of . (split test; not read: train)" in " ".join(other.stdout.split())
    assert 'collect.dataset={"path": ".", "split": "test"}' in other.stdout


@pytest.mark.parametrize("seeds", ["9", "9-", "-9", "9-5", "a-b"])
def test_seeds_of_another_form_are_told(home: Path, seeds: str):
    with pytest.raises(Stop, match=f"--seeds {seeds} is not of the form FIRST-LAST"):
        _dataset(str(home), {}, seeds)


@pytest.mark.long
def test_a_log_of_serve_is_verified_where_its_question_is_known_and_of_a_conversation_counts_the_whole(home: Path):
    counts = {"weights": "w", "promoted": True, "parameters": 1, "stage": "champion"}
    model = published(LocalStore(home / "other", "imported"), Release, "a" * 20, {"model.txt": "a"}, counts)
    log = RequestLog(home / "log.jsonl")
    tool = {"type": "function", "function": {"name": "echo", "parameters": {"type": "object", "properties": {}}}}
    body: dict[str, Any] = {}
    said: dict[str, Any] = {}
    for text in [*(text_of(seed, 1) for seed in range(5)), "a question that no seed asks"]:
        call = {"id": "1", "type": "function", "function": {"name": "echo", "arguments": json.dumps({"message": text})}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        body = {"messages": [{"role": "user", "content": text}], "tools": [tool]}
        log.write(body, {"choices": [{"message": said}]}, model)
    replied = [*body["messages"], said, {"role": "tool", "tool_call_id": "1", "content": "OK."}]
    log.write(
        body | {"messages": replied}, {"choices": [{"message": {"role": "assistant", "content": "Done."}}]}, model
    )
    done = command(home, "import", "log.jsonl", "--recipe", "my recipe.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    printed = " ".join(done.stdout.split())
    for line in ("6 rows of log.jsonl", "verified by the environment 5", "not in the windows 17%"):
        assert line in printed, done.stdout
