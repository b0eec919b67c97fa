"""Requests one tool call from the teacher's endpoint before a collection begins.

In: the recipe, a question of its environment. Out: nothing; Stop with cause and remedy. The request counts towards the
collection's budget; its answer may be wrong and is discarded.
"""

import shutil
from contextlib import closing

from apprentice.envs.base import ToolEnvironment, tool_schemas
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.collect import collect, collect_shard
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.players.budget import Budget
from apprentice.tasks.players.teacher import Spent, Teacher
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import BudgetReached, Stop, TeacherFailed, TeacherUnavailable
from apprentice.tasks.settings.stages import TeacherSpec


def check_teacher(
    run: RunContext, recipe: Recipe, buys: TeacherSpec, environment: ToolEnvironment, seed: int, question: str
) -> None:
    """Raise Stop if the endpoint returns no valid tool call. The collection handles an exhausted budget."""
    window = recipe.seed_windows().collect
    first = recipe.collect.by_teacher(), buys, recipe.environment, window.split(recipe.collect.shards)[0]
    key = collect_shard.key(first, {})
    with run.store.exclusive(
        f"{collect_shard.name}-{key}", announce.warn
    ):  # a concurrent collection charges the same budget
        if collect.find(run, recipe.collect.by_teacher(), buys, recipe.environment, window) is not None:
            return
        scratch = collect_shard.scratch(run, key)
        scratch.mkdir(parents=True, exist_ok=True)
        cap, url = buys.budget_usd, run.servers.teacher()
        spent, called = scratch / "spent_usd", f"{buys.called} at {url or 'OpenAI'}"
        with (
            closing(Budget(buys.prices, cap and cap / recipe.collect.shards, spent)) as budget,
            closing(Teacher(buys, url, recipe.collect.asks, budget)) as teacher,
        ):
            try:
                teacher.reply(prompt(environment, question), tool_schemas(environment), Spent(), seed)
            except BudgetReached:
                return
            except TeacherFailed as failed:
                raise Stop(
                    f"{called} returns no valid tool call: {failed}.",
                    "Set teacher.model to a model that calls tools, let its server parse them (vLLM: "
                    "--enable-auto-tool-choice --tool-call-parser), or raise teacher.max_tokens if reasoning uses them "
                    "up.",
                ) from failed
            except TeacherUnavailable as error:
                raise Stop(f"{called} does not answer: {error}.", "Run again once it does.") from error
            finally:
                if recipe.round or recipe.collect.students:  # its collection has a folder of its own
                    shutil.rmtree(scratch)
