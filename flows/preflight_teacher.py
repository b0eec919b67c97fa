"""Asks the teacher's endpoint for one tool call before a collection begins.

In: the recipe, a question of its environment. Out: nothing; Stop with cause and remedy. The request is charged to the
budget of the collection; its answer need not be right, and is not kept.
"""

from apprentice.envs.base import ToolEnvironment, tool_schemas
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.collect import collect, collect_shard
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.players.budget import Budget
from apprentice.tasks.players.teacher import Spent, Teacher
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import BudgetReached, Stop, TeacherFailed, TeacherUnavailable


def check_teacher(work: RunContext, recipe: Recipe, environment: ToolEnvironment, seed: int, question: str) -> None:
    """Raises Stop where the endpoint gives no valid tool call. A budget that is used up is left to the collection."""
    window = recipe.seed_windows().collect
    first = recipe.collect, recipe.teacher, recipe.environment, window.split(recipe.collect.shards)[0]
    key = collect_shard.key(first, {})
    with work.store.exclusive(f"{collect_shard.name}-{key}", announce.warn):  # whoever collects keeps accounts there
        if collect.find(work, recipe.collect, recipe.teacher, recipe.environment, window) is not None:
            return
        scratch = collect_shard.scratch(work, key)
        scratch.mkdir(parents=True, exist_ok=True)
        cap = recipe.teacher.budget_usd
        budget = Budget(recipe.teacher.prices, cap and cap / recipe.collect.shards, scratch / "spent_usd")
        try:
            _ask(work, recipe, environment, seed, question, budget)
        except BudgetReached:
            return
        finally:
            budget.close()


def _ask(
    work: RunContext, recipe: Recipe, environment: ToolEnvironment, seed: int, question: str, budget: Budget
) -> None:
    url = work.servers.teacher()
    teacher = Teacher(recipe.teacher, url, recipe.collect.asks, budget)
    called = recipe.teacher.called
    try:
        teacher.reply(prompt(environment, question), tool_schemas(environment), Spent(), seed)
    except TeacherFailed as failed:
        raise Stop(
            f"{called} at {url or 'OpenAI'} gives no tool call that can be played: {failed}.",
            "Name a model that calls tools (teacher.model), have its server parse them (vLLM: "
            "--enable-auto-tool-choice --tool-call-parser), or raise teacher.max_tokens where thinking uses them up.",
        ) from failed
    except TeacherUnavailable as away:
        raise Stop(f"{called} at {url or 'OpenAI'} does not answer: {away}.", "Run again when it does.") from away
    finally:
        teacher.close()
