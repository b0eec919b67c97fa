"""An oracle for Reasoning Gym: looks up the answer that the environment itself names for a question.

In: settings, a seed, the question as it was asked. Out: the answer, or a near miss of it. It works nothing out, and is
no model: it stands in for one where no script knows a dataset.
"""

from typing import Any

from apprentice.envs.reasoning_gym.server import datasets, scoring

TRIES = 8
"""Places, from the answer's end, at which a near miss is looked for; scoring one can take two seconds."""
DIGITS, LETTERS = "0123456789", "abcdefghijklmnopqrstuvwxyz"


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for a dataset that names no answer."""
    for name in sorted(datasets.names_of(settings["dataset"], settings.get("dataset_specs") or [])):
        if why := datasets.WITHOUT_AN_ANSWER.get(name):
            raise ValueError(
                f"{name} names no answer of its own (it {why}), so no script can play it; take "
                "teacher.scripted_error_rate out and name a model: teacher.model (and teacher.base_url)"
            )


def answer(settings: dict[str, Any], question: str, seed: int | None, draw: int | None = None) -> str:
    """The environment's own answer; a near miss where a `draw` is given. Raises ValueError where there is none."""
    if seed is None:
        raise ValueError("the oracle looks an answer up by the question's seed, and the request names no seed")
    name, specs = settings["dataset"], settings.get("dataset_specs") or []
    dataset, entry = datasets.entry(name, settings.get("config") or {}, seed, specs)
    if entry["question"] != question:
        raise ValueError(
            f"under seed {seed} the environment asks another question than the Reasoning Gym that is installed here: "
            "their versions differ, and the oracle knows the answers of this one only"
        )
    if entry["answer"] is None:
        raise ValueError(f"{name} names no answer to the question of seed {seed}")
    right = str(entry["answer"])
    return right if draw is None else _near_miss(dataset, entry, right, draw)


def _near_miss(dataset: Any, entry: dict[str, Any], right: str, draw: int) -> str:
    """The answer with one digit or letter another one, as near its end as makes it wrong."""
    places = [place for place in reversed(range(len(right))) if right[place].lower() in DIGITS + LETTERS]
    misses = [right[:place] + another(right[place], draw) + right[place + 1 :] for place in places[:TRIES]]
    return next((miss for miss in [*misses, right[:-1]] if scoring.score(dataset, entry, miss)[0] < 1.0), "")


def another(character: str, draw: int) -> str:
    """Another digit for a digit, another letter for anything else."""
    order = DIGITS if character.isdigit() else LETTERS
    place = order.find(character.lower())
    return order[(place + 1 + draw % (len(order) - 1)) % len(order)]
