"""A model that somebody pretrained, with its own tokenizer: SmolLM2-135M through a whole small run, and at a server."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.artifacts.types import Evaluation, GrpoCheckpoint, SftCheckpoint
from apprentice.tasks.episodes.record import read_episodes
from tests.counterparts.servers import BIN, BUILD, free_port, said, serving

MODEL = BUILD / "smollm2/model"
RECIPE: dict[str, Any] = {
    "name": "smollm2",
    "environment": {
        "name": "reasoning_gym",
        "settings": {"dataset": "chain_sum", "config": {"max_terms": 2, "max_digits": 1, "min_digits": 1}},
    },
    "teacher": {"scripted_error_rate": 0.1},
    "student": {"model": str(MODEL), "chat_template": "qwen2_5"},
    "windows": {"collect": {"size": 24}, "grpo": {"size": 40}, "evaluate": {"size": 400}},
    "sft": {"batch_size": 4, "gradient_accumulation": 1, "learning_rate": 1e-4, "control": False},
    "grpo": {"max_steps": 1, "batch_size": 4, "gradient_accumulation": 1, "num_generations": 4},
    "probe": {"questions": 0},
    "evaluate": {"questions": 8, "max_new_tokens": 48},
}
RECIPE["sft"]["args"] = {"max_steps": 2}
RECIPE["grpo"]["max_completion_length"] = 48


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run has been, with its store."""
    home = tmp_path_factory.mktemp("smollm2")
    (home / "recipe.yaml").write_text(json.dumps(RECIPE | {"store": {"path": str(home / "store")}}))
    said(home, str(BIN / "apprentice"), "run", "recipe.yaml", HF_HUB_OFFLINE="1")
    return home


def published(home: Path, kind: Any) -> list[Path]:
    """The folders of a kind of artifact."""
    return [each.parent for each in sorted((home / "store").glob(f"**/*-{kind.suffix}/snapshots/*/artifact.json"))]


def test_a_pretrained_model_is_trained_evaluated_and_published_whole(home: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    [sft], [grpo] = published(home, SftCheckpoint), published(home, GrpoCheckpoint)
    assert len(json.loads((sft / "log.json").read_text())) == 2
    assert len(json.loads((grpo / "log.json").read_text())) == 1
    evaluated = [read_episodes(folder) for folder in published(home, Evaluation)]
    assert [len(each) for each in evaluated] == [8] * 3, "base, SFT, GRPO"
    assert all(record.prompt_tokens > 200 for each in evaluated for record in each)
    before, after = (AutoModelForCausalLM.from_pretrained(folder) for folder in (MODEL, grpo))
    assert after.config.tie_word_embeddings
    assert {name: each.shape for name, each in before.state_dict().items()} == {
        name: each.shape for name, each in after.state_dict().items()
    }
    assert any(not before.state_dict()[name].equal(each) for name, each in after.state_dict().items())
    assert AutoTokenizer.from_pretrained(grpo).get_vocab() == AutoTokenizer.from_pretrained(MODEL).get_vocab()
    ends = json.loads((grpo / "generation_config.json").read_text())["eos_token_id"]
    assert AutoTokenizer.from_pretrained(grpo).convert_ids_to_tokens([ends] if isinstance(ends, int) else ends)[0] == (
        "<|im_end|>"
    )


def test_transformers_serves_it_by_the_cards_command_and_it_answers_as_it_did(home: Path):
    [folder] = published(home, GrpoCheckpoint)
    command = re.findall(r"^(transformers serve .*)$", (folder / "README.md").read_text(), re.MULTILINE)[0]
    words = [
        *shlex.split(command.replace(" . ", f" {folder} ")),
        "--dtype",
        "float32",
        "--port",
        str(port := free_port()),
    ]
    words[0] = str(BIN / "transformers")
    before = set(published(home, Evaluation))
    with serving(words, f"http://127.0.0.1:{port}/health", home / "serve.log", 200.0, HF_HUB_OFFLINE="1"):
        model = f"http://127.0.0.1:{port}/v1#{folder}"
        said(home, str(BIN / "apprentice"), "evaluate", "recipe.yaml", "--model", model, "--served-student")
    [there] = set(published(home, Evaluation)) - before
    here = [read_episodes(each) for each in before]
    assert [record.prompt_tokens for record in read_episodes(there)] == [record.prompt_tokens for record in here[0]]
    texts = [[message.get("content") for message in record.messages] for record in read_episodes(there)]
    assert texts in [[[message.get("content") for message in record.messages] for record in each] for each in here]
