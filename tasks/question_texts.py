"""Asks the environment for the text of each seed's question.

In: an environment, seeds. Out: the text of each. Those that the store has of the same environment are not asked again.
"""

from collections.abc import Sequence

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.tasks.artifacts.alike import made_alike
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import as_stop


def ask(
    context: StageContext, environment: EnvironmentSpec, seeds: Sequence[int], named: str = "environment.settings"
) -> dict[int, str]:
    """The question of each seed. Raises Stop when the environment rejects the task or cannot be reached.

    Of a window that has grown only the new seeds are asked, and the first one again: a server that asks something else
    now is asked for all of them.

    `named`: the recipe field that holds the task's settings, for the error message.
    """
    known = _known(context, environment, seeds)
    texts = _asked(context, environment, [*list(known)[:1], *(seed for seed in seeds if seed not in known)], named)
    if any(texts[seed] != known[seed] for seed in texts.keys() & known.keys()):
        return _asked(context, environment, seeds, named)
    return known | texts


def _known(context: StageContext, environment: EnvironmentSpec, seeds: Sequence[int]) -> dict[int, str]:
    """The questions of these seeds that the store's folder has, of the same environment."""
    found: dict[int, str] = {}
    for _, folder in made_alike(context.run.store, Questions, {"environment": environment.in_key()}):
        found = {row["seed"]: row["question"] for row in read_rows(folder / "questions.jsonl")} | found
    return {seed: found[seed] for seed in seeds if seed in found}


def _asked(context: StageContext, environment: EnvironmentSpec, seeds: Sequence[int], named: str) -> dict[int, str]:
    texts = {}
    server = context.run.servers.environment(environment.name)
    with (
        as_stop(Refused, "The environment refused the task: {}", f"Correct {named} in the recipe."),
        as_stop(
            SessionLost,
            "The environment's server gave no question: {}",
            "Check with `apprentice env check` that it runs and serves this environment, then run again.",
        ),
        announce.progress("questions", len(seeds)) as advance,
        EnvironmentPool(environment, server, say=announce.warn) as pool,
    ):
        for seed, text in pool.map(lambda instance, seed: instance.ask(seed), seeds):
            texts[seed] = text
            advance(1)
    return texts
