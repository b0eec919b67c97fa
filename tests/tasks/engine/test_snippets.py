"""The Python on a card runs as it stands, and needs nothing of this project."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Artifact
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.rendering import prompt_ids
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.settings.spec import StudentSpec
from tests.hub_server import LocalHub
from tests.tasks.artifacts.test_hub import hub
from tests.tasks.family import HELD_OUT, Family, card

assert hub  # a fixture

RUNS = """
import contextlib, io, json, os, sys
found = []
for folder, snippet in json.load(sys.stdin):
    os.chdir(folder)
    names, said = {}, io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(snippet, names)
    ids = names["inputs"]["input_ids"][0].tolist() if "inputs" in names else []
    found.append([said.getvalue(), ids])
print(json.dumps(found))
"""


@pytest.mark.long
def test_what_a_plain_folder_s_cards_say_to_run_runs(tmp_path: Path, chain_sum: EnvironmentSpec):
    family = Family(LocalStore(tmp_path / "store", "toy"), tmp_path, chain_sum)
    artifacts = [family.rollouts, family.evaluations["grpo"], family.verdict, family.release]
    snippets = [(family.store.fetch(each), snippet(family, each)) for each in artifacts]
    rollouts, episodes, verdict, model = executed(snippets, HF_HOME=str(tmp_path / "cache"), HF_HUB_OFFLINE="1")
    assert "num_rows: 3" in rollouts[0]
    assert "num_rows: 4" in episodes[0]
    assert "'contamination'" in verdict[0]
    assert model[1] == trained_prompt(family)


@pytest.mark.long
def test_what_the_hub_s_cards_say_to_run_runs(hub: LocalHub, tmp_path: Path, chain_sum: EnvironmentSpec):
    family = Family(HubStore(tmp_path / "store", "toy", "team"), tmp_path, chain_sum)
    artifacts = [family.kept, family.questions, family.lengths, family.grpo]
    snippets = [(tmp_path, snippet(family, each)) for each in artifacts]
    for (_, text), artifact in zip(snippets, artifacts, strict=True):
        assert f'"{artifact.repository}"' in text
        assert f'revision="{artifact.key}"' in text
    (tmp_path / "other").mkdir()
    began = StudentSpec(model=family.grpo.repository, revision=family.grpo.key)  # its weights are not beside the card
    other = Family(HubStore(tmp_path / "other", "other", "team"), tmp_path / "other", chain_sum, began=began)
    snippets.append((tmp_path, snippet(other, other.base)))
    kept, questions, lengths, model, base = executed(snippets, **hub.variables(tmp_path / "cache"))
    assert "num_rows: 1" in kept[0]
    assert "num_rows: 3" in questions[0]
    assert "max_length" in lengths[0]
    assert model[1] == base[1] == trained_prompt(family)


def trained_prompt(family: Family) -> list[int]:
    """The held-out question as the student is trained and examined."""
    instance = family.environment.make()
    tokenizer = load_tokenizer(family.store.fetch(family.grpo))
    return prompt_ids(tokenizer, prompt(instance, HELD_OUT), instance.schemas)


def snippet(family: Family, artifact: Artifact) -> str:
    """The Python on a card."""
    found = "\n".join(re.findall(r"```python\n(.*?)```", card(family.store, artifact).text, re.DOTALL))
    assert "apprentice" not in found
    return found


def executed(snippets: list[tuple[Path, str]], **variables: str) -> list[list[Any]]:
    """What each snippet said, and the token ids that it gave a model, each in a namespace of its own."""
    ran = subprocess.run(
        [sys.executable, "-I", "-c", RUNS],
        input=json.dumps([[str(folder), text] for folder, text in snippets]),
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])
