"""Python that loads what a card describes, complete: it is copied and runs.

In: an artifact that is being made. Out: the text of a snippet, or nothing where there is nothing to load.
On the Hub an artifact is named by its repository and its tag. A store that is a plain folder is nowhere but there, so
its snippets are run in the folder in which the card lies.
"""

import json
from pathlib import Path
from pprint import pformat
from typing import Any

from pydantic import ValidationError

from apprentice.envs.base import ToolEnvironment, tool_schemas
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.cards.ancestry import Ancestry
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS

NO_QUESTION = "Put a question here."
NEW_TOKENS = 64
"""Where no recipe says how long a turn may be."""


def is_on_hub(ancestry: Ancestry) -> bool:
    return isinstance(ancestry.store, HubStore)


def where_it_runs(ancestry: Ancestry) -> str:
    """The sentence above a snippet."""
    if is_on_hub(ancestry):
        return (
            "The revision is a tag of this repository, and never moves. Where the repository is private, log in "
            "first (`hf auth login`)."
        )
    return "Run it in the folder in which this card lies."


def dataset_snippet(ancestry: Ancestry, out: Path) -> str:
    """Loads the rows, or the one JSON file where there are none."""
    rows, files = sorted(out.glob("*.jsonl")), sorted(out.glob("*.json"))
    if rows:
        return _loads_rows(ancestry, f', "{rows[0].stem}"' if len(rows) > 1 else "")
    return _loads_file(ancestry, files[0].name) if files else ""


def _loads_rows(ancestry: Ancestry, config: str) -> str:
    if is_on_hub(ancestry):
        begin, where = [], f'"{ancestry.name.repository}"{config}, revision="{ancestry.name.key}"'
    else:
        begin, where = ["import os", ""], f"os.getcwd(){config}"
    load = ["from datasets import load_dataset", "", f'rows = load_dataset({where}, split="train")']
    return "\n".join([*begin, *load, "print(rows)", "print(rows[0])"])


def _loads_file(ancestry: Ancestry, name: str) -> str:
    begin, path = ["import json", ""], f'"{name}"'
    if is_on_hub(ancestry):
        begin += [
            "from huggingface_hub import hf_hub_download",
            "",
            "path = hf_hub_download(",
            f'    "{ancestry.name.repository}", "{name}", repo_type="dataset", revision="{ancestry.name.key}"',
            ")",
        ]
        path = "path"
    return "\n".join([*begin, f"with open({path}) as file:", "    found = json.load(file)", "print(list(found))"])


def model_snippet(ancestry: Ancestry, source: tuple[str, str] | None, trusted: bool) -> str:
    """Loads the model, gives it a question as it was trained to read one, and prints what it says.

    Args:
        source: The model of the Hub, and its revision, that has the weights where they are not beside the tokenizer.
        trusted: It needs Python code that lies in the repository of its weights.
    """
    own = _arguments(ancestry.name.repository, ancestry.name.key) if is_on_hub(ancestry) else '"."'
    weights = _arguments(*source) if source else own
    trust = ", trust_remote_code=True" if trusted else ""  # whoever copies this is told, see model_card.py
    evaluate = ancestry.record.provenance.recipe.get("evaluate", {}) if ancestry.record else {}
    template = ", ".join(f"{name}={value!r}" for name, value in TEMPLATE_ARGUMENTS.items())
    messages, tools = _prompt(ancestry)
    return "\n".join(
        [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f"tokenizer = AutoTokenizer.from_pretrained({own}{trust})",
            f"model = AutoModelForCausalLM.from_pretrained({weights}{trust})",
            f"messages = {_python(messages)}",
            f"tools = {_python(tools)}",
            "inputs = tokenizer.apply_chat_template(",
            "    messages,",
            "    tools=tools,",
            "    add_generation_prompt=True,",
            f"    {template},",
            "    return_dict=True,",
            '    return_tensors="pt",',
            ")",
            f"output = model.generate(**inputs, max_new_tokens={evaluate.get('max_new_tokens', NEW_TOKENS)}, "
            "do_sample=False)",
            'print(tokenizer.decode(output[0][inputs["input_ids"].shape[1] :]))',
        ]
    )


def _arguments(repository: str, revision: str) -> str:
    return f'"{repository}", revision="{revision}"'


def _python(value: Any) -> str:
    return pformat(value, width=110, sort_dicts=False)  # the order is that of training


def _prompt(ancestry: Ancestry) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages that open an episode, with a question, and the tools."""
    instance = _instance(ancestry.environment())
    seed, question = _question(ancestry)
    if instance is None:
        return [{"role": "user", "content": question}], []
    return prompt(instance._part(seed), question), tool_schemas(instance._part(seed))


def _instance(environment: dict[str, Any] | None) -> ToolEnvironment | None:
    """The environment to look at; None where this code has it no more, or in another version."""
    try:
        return EnvironmentSpec.model_validate(environment).make()
    except ValidationError:
        return None


def _question(ancestry: Ancestry) -> tuple[int, str]:
    """Seed and text of a question of the evaluation, or of GRPO where there is none among the nearest."""
    asked = ancestry.nearest(Questions)
    if (folder := asked.fetch() if asked else None) is None:
        return 0, NO_QUESTION
    with (folder / "questions.jsonl").open() as file:
        used = [row for row in map(json.loads, file) if row["used"]]
    by_purpose = {row["purpose"]: (row["seed"], row["question"]) for row in reversed(used)}  # the first of each
    return by_purpose.get("evaluate") or by_purpose.get("grpo", (0, NO_QUESTION))
