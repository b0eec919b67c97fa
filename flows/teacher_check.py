"""Requests one tool call from the teacher's endpoint before a collection begins."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from apprentice.envs.player import Player
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.collect import collect, collect_shard
from apprentice.tasks.endpoints.budget import Budget
from apprentice.tasks.endpoints.teacher import Spent, Teacher
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import BudgetReached, Stop, TeacherFailed, TeacherRefused, TeacherUnavailable
from apprentice.tasks.reporting.safe_text import one_line
from apprentice.tasks.settings.endpoint import TeacherSpec

TRIES = 3
"""Questions that a teacher is asked before it counts as one that calls no tools."""


def check_teacher(
    run: RunContext,
    recipe: Recipe,
    buys: TeacherSpec,
    player: Player,
    questions: Sequence[tuple[int, str]],
) -> None:
    """Raise Stop if the endpoint returns no valid tool call to any of the first questions, each with its seed.

    The collection handles an exhausted budget.
    """
    window = recipe.seed_windows().collect
    task = recipe.environment.unscaled()
    first = recipe.collect.by_teacher(), buys, task, window.split(recipe.collect.shards)[0]
    key = collect_shard.key(first, {})
    with run.store.exclusive(
        f"{collect_shard.name}-{key}", announce.warn
    ) as lease:  # a concurrent collection charges the same budget
        if collect.find(run, recipe.collect.by_teacher(), buys, task, window) is not None:
            return
        url = run.servers.teacher()
        scratch = collect_shard.scratch(run, key)
        is_only_asked = not recipe.collects and not scratch.exists()
        scratch.mkdir(parents=True, exist_ok=True)
        cap = buys.budget_usd
        try:
            with closing(
                Budget(buys.prices, cap and cap / recipe.collect.shards, scratch / "spent_usd", lease.check)
            ) as budget:
                _ask(Teacher(buys, url, recipe.collect.asks, budget), buys, url, player, questions[:TRIES])
        except BudgetReached:
            return
        finally:
            if recipe.chooses_seeds or is_only_asked:  # then the collection has a folder of its own, or there is none
                shutil.rmtree(scratch)


def _ask(
    teacher: Teacher,
    buys: TeacherSpec,
    url: str | None,
    player: Player,
    questions: Sequence[tuple[int, str]],
) -> None:
    called = buys.called
    if buys.scripted_error_rate is None:
        for line in inherited(url):
            announce.say(line)
    last: TeacherFailed | None = None
    refused = 0
    try:
        for seed, question in questions:
            try:
                teacher.reply(prompt(player, question), player.schemas, Spent(), seed, player.takes_text)
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
