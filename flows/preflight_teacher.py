"""Requests one tool call from the teacher's endpoint before a collection begins.

In: the recipe, some questions of its environment. Out: nothing; Stop with cause and remedy. The request counts towards
the collection's budget; its answer may be wrong and is discarded. Another question is asked only where the one before
brought no valid call: a teacher may fail at one question and do well at most.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from apprentice.envs.base import ToolEnvironment, tool_schemas
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.collect import collect, collect_shard
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.players.budget import Budget
from apprentice.tasks.players.teacher import Spent, Teacher
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import BudgetReached, Stop, TeacherFailed, TeacherRefused, TeacherUnavailable
from apprentice.tasks.reporting.text import one_line
from apprentice.tasks.settings.teacher import TeacherSpec


def check_teacher(
    run: RunContext,
    recipe: Recipe,
    buys: TeacherSpec,
    environment: ToolEnvironment,
    questions: Sequence[tuple[int, str]],
) -> None:
    """Raise Stop if the endpoint returns no valid tool call to any of the questions, each with its seed.

    The collection handles an exhausted budget.
    """
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
        cap = buys.budget_usd
        budget = Budget(buys.prices, cap and cap / recipe.collect.shards, scratch / "spent_usd")
        try:
            _ask(run, recipe, buys, environment, questions, budget)
        except BudgetReached:
            return
        finally:
            budget.close()
            if recipe.chooses_seeds:  # then the collection has a folder of its own
                shutil.rmtree(scratch)


def _ask(
    run: RunContext,
    recipe: Recipe,
    buys: TeacherSpec,
    environment: ToolEnvironment,
    questions: Sequence[tuple[int, str]],
    budget: Budget,
) -> None:
    url = run.servers.teacher()
    teacher = Teacher(buys, url, recipe.collect.asks, budget)
    called = buys.called
    if not recipe.is_scripted:
        for line in inherited(url):
            announce.say(line)
    last: TeacherFailed | None = None
    refused = 0
    try:
        for seed, question in questions:
            try:
                teacher.reply(prompt(environment, question), tool_schemas(environment), Spent(), seed)
                return
            except TeacherRefused as failed:
                last, refused = failed, refused + (not failed.is_understood)
            except TeacherFailed as failed:
                last = failed
        if isinstance(last, TeacherRefused) and not refused:
            return  # a filter; the collection bounds how many questions may meet it
        if refused:
            raise Stop(
                f"{called} at {url or 'OpenAI'} refuses {len(questions)} questions: {last}.",
                "Correct the teacher section: teacher.request adds or removes any part of the request.",
            ) from last
        raise Stop(
            f"{called} at {url or 'OpenAI'} returns no valid tool call to {len(questions)} questions: {last}.",
            "Set teacher.model to a model that calls tools, let its server parse them (vLLM: "
            "--enable-auto-tool-choice --tool-call-parser), or raise teacher.max_tokens if reasoning uses them up.",
        ) from last
    except TeacherUnavailable as error:
        raise Stop(f"{called} at {url or 'OpenAI'} does not answer: {error}.", "Run again once it does.") from error
    finally:
        teacher.close()


def inherited(url: str | None) -> Iterator[str]:
    """Yield a sentence for each variable of the process that decides where the key goes, or for whom."""
    parts = urlsplit(url or "https://api.openai.com")
    proxy = getproxies().get(parts.scheme)
    if proxy and not proxy_bypass(parts.hostname or ""):
        yield f"The teacher is asked through the proxy {urlsplit(proxy).hostname} ({parts.scheme}_proxy)."
    for name, whom in (("OPENAI_ORG_ID", "organization"), ("OPENAI_PROJECT_ID", "project")):
        if value := os.environ.get(name):
            yield f"The teacher is asked for the {whom} {one_line(value)} ({name})."
