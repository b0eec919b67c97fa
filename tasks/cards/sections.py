"""What all cards have in common: the environment, the files, the licence, and what the artifact was made from.

In: an artifact's ancestry and its files. Out: sections in Markdown, as lists of lines.
A card is for strangers, so paths and addresses of the machines that made it are left out of it.
"""

import json
import re
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.trust import CODE
from apprentice.tasks.cards.ancestry import Ancestry
from apprentice.tasks.reporting.markdown import code, fenced, markdown_table
from apprentice.tasks.settings.who_played import who_played_for_strangers

HIDDEN = "(not shown)"
OF_A_MACHINE = re.compile(r"\w://|^(/|~/|\.{1,2}/|[A-Za-z]:\\)\S")
FILES = {
    "artifact.json": "the record: what made it, from what, and the SHA-256 of each file",
    CODE: "whose the Python code is that lies here",
    "completions.jsonl": "what it said while it trained: a rollout a line, now and then a group",
    "curves.png": "the curves of its training",
    "decision.json": "every rule of the gate, and what was found",
    "episodes.jsonl": "the data: an episode a line",
    "histogram.png": "the lengths as a picture",
    "kept.jsonl": "the data: an episode a line",
    "learned.jsonl": "the questions that it was trained on: stage, seed, text",
    "lengths.json": "percentiles, max_length, and the length of each text",
    "log.json": "the training's log, behind the curves",
    "questions.jsonl": "the data: a question a line",
    "rollouts.jsonl": "the data: an episode a line",
    "samples.md": "three of the episodes, for reading",
    "signals.json": "what its training warned of or stopped at, by which rules, and which step's weights these are",
    "source.json": "where its weights are: a model of the Hub, and its revision",
    "verdict.json": "rates, differences, slices, failures, contamination, the reading of GRPO's curves",
}


def shown(value: Any) -> Any:
    """JSON as a card shows it: without paths of a machine, and without addresses of servers."""
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shown(each) for each in value]
    return HIDDEN if isinstance(value, str) and OF_A_MACHINE.search(value) else value


def block(language: str, text: str) -> str:
    """Text in a block of its own, coloured as a language; no run of backticks in it can end the block."""
    return fenced(text).replace("text", language, 1)  # the first one stands in the fence


def called(environment: dict[str, Any]) -> str:
    """What a person calls an environment, such as "reasoning_gym chain_sum"; as `EnvironmentSpec` does."""
    told = [value for value in environment.get("settings", {}).values() if isinstance(value, str)]
    return " ".join([environment["name"], *map(str, shown(told))])


def acted_in(ancestry: Ancestry) -> str:
    """The environment, within a sentence."""
    environment = ancestry.environment()
    return code(called(environment)) if environment else "an environment that no record of it names any more"


def taught_by(teacher: dict[str, Any]) -> str:
    """Who played a teacher's episodes, within a sentence."""
    return code(who_played_for_strangers(teacher | {"model": shown(teacher.get("model"))}))


def decoded(spec: dict[str, Any]) -> str:
    """How an examination drew its answers, within a sentence."""
    how = f"sampled at temperature {spec['temperature']}" if spec["decoding"] == "sampled" else "greedy"
    return f"{how}, at most {spec['max_new_tokens']} tokens a turn, {spec['samples']} of each question"


def named(each: Ancestry) -> str:
    """An artifact, as it is found again."""
    return f"{code(each.name.repository)} at tag {code(each.name.key)} (revision {code(each.name.revision)})"


def tags(ancestry: Ancestry) -> list[str]:
    """By which it is found on the Hub."""
    assert ancestry.record is not None
    environment = ancestry.environment()
    return ["apprentice", "openenv", ancestry.record.made_by["stage"], *([environment["name"]] if environment else [])]


def environment_section(environment: dict[str, Any] | None) -> list[str]:
    if environment is None:
        return []
    revision = environment.get("revision")
    served = f", served at its revision {code(shown(revision))}" if revision else ""
    return [
        "## The environment",
        "",
        f"[OpenEnv](https://github.com/meta-pytorch/OpenEnv) environment {code(environment['name'])}, version "
        f"{code(environment['version'])} of its code{served}. With these settings a seed names one question, on any "
        "server:",
        "",
        block("json", json.dumps(shown(environment.get("settings", {})), indent=2, ensure_ascii=False)),
    ]


def files_section(out: Path) -> list[str]:
    """The files that are ours; those of a model are transformers' own."""
    found = sorted(name for name in FILES if name == "artifact.json" or (out / name).exists())
    rows = [{"file": code(name), "what it is": FILES[name]} for name in found]
    rest = "The other files are the model's, as transformers writes and reads them.\n"
    return ["## Files", "", markdown_table(rows), *([rest] if (out / "config.json").exists() else [])]


def licence_section(licence: str, others: str) -> list[str]:
    """`others`: whose terms may bind besides."""
    said = "Its maker states none: ask before you use it." if licence == "unknown" else "As its maker states it."
    return ["## Licence", "", f"{code(licence)}. {said} {others}".strip(), ""]


def sources_section(sources: list[Ancestry]) -> list[str]:
    """What it was made from, and what of that is gone."""
    if not sources:
        return []
    rows = [
        {
            "what": (each.kind.__doc__ or "").splitlines()[0] if each.kind else code(each.name.kind),
            "repository": code(each.name.repository),
            "tag": code(each.name.key),
            "revision": code(each.name.revision),
        }
        for each in sources
    ]
    lost = [each for each in sources if each.record is None]
    return [
        "## Where it came from",
        "",
        "A tag is a key: a hash of the stage, its settings and its inputs. A revision is a hash of the content.",
        "",
        markdown_table(rows),
        *(f"The record of {named(each)} is gone, so nothing more is said of it.\n" for each in lost),
    ]


def made_by_section(ancestry: Ancestry) -> list[str]:
    assert ancestry.record is not None
    provenance = ancestry.record.provenance
    when = f", at {provenance.made_at}" if provenance.made_at else ""
    by = [f"By {provenance.code}{when}.", ""] if provenance.code else []
    made_by = json.dumps(shown(ancestry.record.made_by), indent=2, ensure_ascii=False)
    return ["## Made by", "", *by, block("json", made_by)]
