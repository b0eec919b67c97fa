"""Scores rollouts that exist anew: plays the recorded actions of each episode under the environment's present rewards.

In: `Rollouts`, the environment as it is now. Out: `RescoredRollouts`: rollouts.jsonl in the same order, left_out.json.
A question is its seed, so the replay is exact, and a changed reward costs no request to a teacher. An
episode is skipped, with its seed, if the environment's question or reply differs from the record, because the teacher
might have acted differently.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from logging import WARNING
from typing import Any, TypeVar

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reward import ROUNDING, is_right
from apprentice.envs.tools import are_tools_of
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.tasks.artifacts.types import COUNTED, RescoredRollouts, Rollouts
from apprentice.tasks.engine.limits import leases
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.record import Message, Record
from apprentice.tasks.episodes.texts import as_stored
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop, as_stop
from apprentice.tasks.reporting.progress import note

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

MOST_LEFT_OUT = 0.5
"""Share of the episodes that may differ; above it more than the rewards has changed."""
UNPLAYED = ("no", "person", "teacher")
"""Whose verdict is not the environment's: no seed of it asks the question."""
Replayed = tuple[Record, str]
"""The episode under the present rewards, and how it differs from its record; empty if it does not."""


@stage(
    produces=RescoredRollouts,
    version=1,
    title="Rollouts of the teacher, rescored",
    drawn=Drawn("Rescore", "episodes", "episodes"),
)
def rescore(context: StageContext, rollouts: Rollouts, environment: EnvironmentSpec) -> dict[str, Any]:
    """Plays every episode again. Raises Stop when too many differ from their record, or the environment is lost."""
    server = context.run.servers.environment(environment.name)
    totals: Counter[str] = Counter(dict.fromkeys(("episodes", "failed", "changed", *COUNTED), 0))
    right: Counter[str] = Counter()
    left_out: list[dict[str, Any]] = []
    with (
        as_stop(SessionLost, "The environment is out of reach: {}.", "Check that it runs, then run again."),
        as_stop(
            Refused,
            "The environment refused a question that it asked before: {}.",
            "Check that its server is the one that the recipe names (server.url), then run again.",
        ),
        EnvironmentPool(environment, server, say=announce.warn, lease=leases) as pool,
        announce.progress("episodes", rollouts.episodes) as advance,
        (context.fetch(rollouts) / "rollouts.jsonl").open("rb") as lines,
        (context.out / "rollouts.jsonl").open("wb") as out,
    ):
        records = map(Record.model_validate_json, lines)
        replayed = in_order(pool, lambda instance, record: replay(instance, record, environment), records)
        for before, (after, differs) in replayed:
            advance(1)
            count("episodes")
            if differs:
                left_out.append({"seed": before.seed, "cause": differs})
                note("left out", WARNING, episode=before.seed, cause=differs)
                continue
            out.write(after.line())
            totals.update({name: getattr(after, name) for name in COUNTED})
            totals.update(episodes=1, failed=bool(after.failed_at), changed=not is_same(after.reward, before.reward))
            right.update(before=is_right(before.reward), now=is_right(after.reward))
    if len(left_out) > MOST_LEFT_OUT * rollouts.episodes:
        raise Stop(
            f"{len(left_out)} of {rollouts.episodes} recorded episodes do not fit this environment; seed "
            f"{left_out[0]['seed']}: {left_out[0]['cause']}. More than its rewards has changed.",
            "Raise the first number of the environment's version, and `apprentice run` collects anew.",
        )
    (context.out / "left_out.json").write_text(json.dumps(left_out, indent=2) + "\n")
    _announce(totals, right, left_out)
    return dict(totals) | {"left_out": len(left_out)}


def in_order(pool: EnvironmentPool, play: Callable[[Player, I], R], items: Iterable[I]) -> Iterator[tuple[I, R]]:
    """Yield each item with its result, in the items' order; keeps only results that overtook an earlier one."""
    ahead: dict[int, tuple[I, R]] = {}
    following = 0
    for (number, item), played in pool.map(lambda each, numbered: play(each, numbered[1]), enumerate(items)):
        ahead[number] = item, played
        while following in ahead:
            yield ahead.pop(following)
            following += 1


def replay(instance: Player, record: Record, environment: EnvironmentSpec) -> Replayed:
    """Plays the recorded actions; what failed or was not verified has no reward to change, and stays as it is. Raises
    SessionLost."""
    part = instance.part(record.seed)
    now = {"environment": environment.played_by(part), "takes_text": part.takes_text}
    if record.failed_at or record.verified in UNPLAYED:
        return record.model_copy(update=now), ""
    if not are_tools_of(part.tools, record.tools):
        return record, "the tools have another schema"
    episode = Episode(instance, record.seed)
    act_again(episode, record.messages)
    differs = episode.broken or difference(episode, record.messages)
    return record.model_copy(update=now | {"reward": episode.reward, "correct": part.correct or ""}), differs


def act_again(episode: Episode, then: list[Message]) -> None:
    """Play the recorded actions until the replay differs, or reaches the end. Raises SessionLost.

    Args:
        then: The recorded conversation. The content of a tool's reply is None where it was not recorded.
    """
    while not episode.done and (action := _next_action(episode.messages, then)):
        episode.step(action)


def _next_action(now: list[Message], then: list[Message]) -> Message | None:
    """The recorded message that follows; None once the replay differs, or has reached the record's end."""
    follows = then[len(now)] if len(then) > len(now) and all(map(_agree, now, then)) else None
    return follows if follows and follows["role"] == "assistant" else None


def _agree(now: Message, then: Message) -> bool:
    if now == then or then["role"] != "tool":
        return now == then
    known = then["content"]
    return now | {"content": known} == then and (known is None or as_stored(known) == as_stored(now["content"]))


def difference(episode: Episode, then: list[Message]) -> str:
    """How the replay differs from the recorded conversation; empty if it does not."""
    now = episode.messages
    at = next((at for at, pair in enumerate(zip(now, then, strict=False)) if not _agree(*pair)), len(now))
    if at == len(now) == len(then):
        return "" if episode.done else "the episode goes on where it ended"
    if at == len(now):
        return f"the episode ends after {episode.turns} turns"
    return ("another system prompt", "another question")[at] if at < 2 else f"another answer in turn {episode.turns}"


def is_same(reward: float | None, other: float | None) -> bool:
    """Whether two rewards are one, up to rounding; older records have what an environment summed, such as 1 - 1e-16."""
    return reward == other if reward is None or other is None else abs(reward - other) <= ROUNDING


def _announce(totals: Counter[str], right: Counter[str], left_out: list[dict[str, Any]]) -> None:
    rows = [
        {"rollouts": "reward 1.0 before", "count": right["before"]},
        {"rollouts": "reward 1.0 now", "count": right["now"]},
        {"rollouts": "another reward", "count": totals["changed"]},
    ]
    causes = Counter(each["cause"] for each in left_out)
    rows += [{"rollouts": f"left out: {cause}", "count": number} for cause, number in causes.most_common()]
    announce.table("rescored", f"Rescored {totals['episodes']} episodes without a teacher", rows)
    if left_out:
        seeds = ", ".join(str(each["seed"]) for each in left_out[:NAMED])
        more = " and more, all in left_out.json" if len(left_out) > NAMED else ""
        announce.warn(f"Left out, since the environment answers otherwise than was recorded: seeds {seeds}{more}.")


NAMED = 20
"""Seeds that a warning names."""
