"""Asks the environment for the text of every question: those of the evaluation are kept out of training."""

from typing import Any

from apprentice.envs.pool import EnvironmentPool
from tests.bench.scripts.given import Given, Row


def main(given: Given) -> None:
    recipe, windows = given.recipe, given.recipe.seed_windows()
    with given.pool() as pool:
        texts = {name: ask(pool, window.seeds()) for name, window in windows}
    examined = distinct(texts["evaluate"], recipe.evaluate.questions)
    known = {row["question"].casefold() for row in examined}
    given.write("collect.jsonl", rows_of(texts["collect"]))
    given.write("grpo.jsonl", [row for row in rows_of(texts["grpo"]) if row["question"].casefold() not in known])
    given.write("evaluate.jsonl", examined)
    for place, guard in enumerate(recipe.guards):
        with EnvironmentPool(guard.environment, given.server) as pool:
            asked = ask(pool, recipe.guard_window(place).seeds())
        given.write(f"{guard.name}.jsonl", distinct(asked, guard.questions))


def ask(pool: EnvironmentPool, seeds: Any) -> dict[int, str]:
    return dict(sorted(pool.map(lambda environment, seed: environment.reset(seed=seed), seeds)))


def distinct(texts: dict[int, str], wanted: int) -> list[Row]:
    first = {text.casefold(): row for row in reversed(rows_of(texts)) for text in (row["question"],)}
    return sorted(first.values(), key=lambda row: row["seed"])[:wanted]


def rows_of(texts: dict[int, str]) -> list[Row]:
    return [{"seed": seed, "question": text} for seed, text in texts.items()]
