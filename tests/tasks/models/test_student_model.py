"""What a built student knows before the first episode: to repeat and to reverse letters, and nothing of the task."""

import json
import random
from pathlib import Path

import pytest
from huggingface_hub import constants

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.models.student_model import (
    BATCH_SIZE,
    BETWEEN,
    LETTERS,
    batch_of,
    built_model,
    check_downloaded,
    text_of,
)
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import BuiltStudent, StudentSpec
from tests.tokenizers import build_tokenizer


@pytest.fixture
def tokenizer(chain_sum: EnvironmentSpec):
    return build_tokenizer(chain_sum, ["12 + 34 =", "56 - 78 ="])


def test_a_text_is_a_string_and_the_string_again_forward_or_backward(tokenizer):
    draw, forward = random.Random(0), 0
    for _ in range(200):
        ids, known = text_of(tokenizer, draw)
        again = tokenizer.decode(ids[known:-1])
        word = tokenizer.decode(ids[1 : 1 + len(again)])
        assert again in (word, word[::-1])
        assert LETTERS[0] <= len(word) <= LETTERS[1]
        assert BETWEEN[0] <= known - 1 - len(word) <= BETWEEN[1]
        assert ids[-1] == tokenizer.eos_token_id
        forward += again == word
    assert 60 < forward < 140


def test_no_text_holds_a_digit_or_a_whole_episode(tokenizer):
    draw = random.Random(0)
    assert not any(
        letter.isdigit() for _ in range(200) for letter in tokenizer.decode(text_of(tokenizer, draw)[0][1:6])
    )


def test_the_loss_is_on_the_repetition_alone_and_padding_is_not_attended_to(tokenizer):
    draw = random.Random(2)
    texts = [text_of(tokenizer, draw) for _ in range(BATCH_SIZE)]
    batch = batch_of(tokenizer, random.Random(2))
    columns = [batch[name].tolist() for name in ("input_ids", "labels", "attention_mask")]
    for (ids, known), given, labels, seen in zip(texts, *columns, strict=True):
        assert given[: len(ids)] == ids
        assert labels[:known] == [-100] * known
        assert labels[known : len(ids)] == ids[known:]
        assert set(labels[len(ids) :]) <= {-100}
        assert sum(seen) == len(ids)


@pytest.mark.long
def test_pretraining_lowers_the_loss_on_new_texts_and_the_same_seed_gives_the_same_weights(tokenizer):
    import torch

    small = BuiltStudent(hidden_size=32, intermediate_size=32, layers=1, heads=2, max_positions=64)
    draw = random.Random(1)
    texts = [text_of(tokenizer, draw) for _ in range(20)]
    losses, weights = [], []
    for steps in (0, 60, 60):
        model = built_model(small.model_copy(update={"pretraining_steps": steps}), tokenizer, seed=3).eval()
        with torch.no_grad():
            labels = [torch.tensor([[-100] * known + ids[known:]]) for ids, known in texts]
            inputs = [torch.tensor([ids]) for ids, _ in texts]
            losses.append(
                sum(model(input_ids=i, labels=t).loss.item() for i, t in zip(inputs, labels, strict=True)) / 20
            )
        weights.append(torch.cat([each.flatten() for each in model.parameters()]))
    assert losses[1] < losses[0] - 1.0
    assert torch.equal(weights[1], weights[2])


COMMIT = "c0ffee" * 6 + "c0ff"


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        (["model.safetensors"], ""),
        (["model.safetensors.index.json", "a.safetensors", "b.safetensors"], ""),
        (["model.safetensors.index.json", "a.safetensors"], "b.safetensors"),
        (["config.json"], "model.safetensors"),
        (["pytorch_model.bin"], "model.safetensors"),  # which is not read, because it is pickled
    ],
    ids=str,
)
def test_weights_that_may_not_be_downloaded_are_on_this_machine_before_a_run(
    files: list[str], missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "models--owner--name" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    shards = {"weight_map": {"one": "a.safetensors", "two": "b.safetensors"}}
    for name in files:
        (folder / name).write_text(json.dumps(shards))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    spec = StudentSpec(model="owner/name", revision=COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    check_downloaded(spec)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if not missing:
        check_downloaded(spec)
        return
    with pytest.raises(
        Stop, match=f"has no {missing} on this machine.*\n→ .*hf download owner/name --revision {COMMIT}"
    ):
        check_downloaded(spec)
    check_downloaded(StudentSpec(build=BuiltStudent()))
