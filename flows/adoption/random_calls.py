"""What random calls show of a server: its rewards, its turns, and the tool that a last text is sent as.

In: a server that somebody else published. Out: settings of its recipe, each with what it follows from.
"""

import random
import re
from collections.abc import Sequence
from time import monotonic
from typing import Any, NamedTuple

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.passing import leaves
from apprentice.envs.wire.reply import BadReply, Reply, one_line
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.flows.audit.play.audited_episodes import AuditedEpisode, play
from apprentice.flows.audit.play.guesses import any_call
from apprentice.flows.audit.play.recorded import Recorded
from apprentice.flows.recipe.adopted_recipe import DerivedSetting
from apprentice.tasks.reporting.errors import Stop

PLAYED = 8
"""Episodes that are played with random calls."""
LONGEST = 30
"""Turns after which such an episode is left."""
AT_LEAST = 10
"""Turns that a right episode may need, where random calls end it sooner, or some were refused."""
LONGEST_ANNOUNCED = 50
"""Turns beyond which a server's own limit is not taken over: a student's context holds no more."""
THINGS = "(steps|turns|rounds|moves|actions|attempts|tries|guesses|questions|days)"
TURNS = re.compile(rf"(^|[._])(horizon|(max|total|num)_{THINGS}|{THINGS}_(left|remaining)|remaining_{THINGS})$", re.I)
"""Names of how many turns an episode has."""
SCORE = re.compile(r"(^|[._])(\w+_)?(score|accuracy|progress|grade)$", re.IGNORECASE)
"""Names of what an answer is worth as a whole, so that the rewards of several are no sum."""
SPEAKS = re.compile(r"respond|reply|say|speak|tell|talk|message|answer_?(the_?)?user", re.IGNORECASE)
"""Names of tools that speak to the user."""
SECONDS = 10.0
"""After which no further episode begins."""
MOST_SECONDS = 60.0
"""After which the running one is left: a browser takes seconds a turn."""


class RandomEpisode(NamedTuple):
    """An episode of random calls: the rewards of its steps, whether the environment ended it, its last reply."""

    rewards: list[float]
    calls: list[str]
    """Their tools."""
    ended: bool
    last: str
    taken: int
    """How many of its calls the server took."""
    is_scored: bool = False
    """Whether each reward is what a field of the same reply calls the score so far."""
    announced: int = 0
    """The most turns that its reset speaks of; 0 if it speaks of none."""


def random_episodes(server: EnvironmentServer, spec: EnvironmentSpec) -> list[RandomEpisode]:
    """Play a server with random calls. Raises Stop where no episode can be played."""
    draw, session = random.Random(0), Recorded(server)
    player = spec.with_settings(spec.settings | {"max_turns": LONGEST}).make(session)
    found = []
    try:
        began = monotonic()
        for seed in range(PLAYED):
            if found and monotonic() > began + SECONDS:
                break
            ended: AuditedEpisode = play(
                player,
                seed,
                lambda episode: None if monotonic() > began + MOST_SECONDS else any_call(episode, draw),
            )
            opening, *replies = session.replies
            rewarded = [reply for reply in replies if reply.reward]
            found.append(
                RandomEpisode(
                    [reply.reward for reply in replies if reply.reward is not None],
                    [tool for tool, _ in ended.calls],
                    ended.ended,
                    "".join(ended.replies[-1:]),
                    len(replies),
                    is_scored=bool(rewarded) and all(map(_is_score, rewarded)),
                    announced=_announced(opening),
                )
            )
    except (Refused, BadReply, SessionLost) as error:
        if not found:
            raise Stop(
                f"{server.url} cannot be trained on: no episode could be played ({error}).", "See its log."
            ) from error
    finally:
        session.close()
    return found


def earned(played: Sequence[RandomEpisode]) -> str:
    """Return what the episodes earned, in a sentence."""
    if not any(each.taken for each in played):
        return f"No random call was taken; the last one: {one_line(played[-1].last, 160)}"
    rewards = [sum(each.rewards) for each in played]
    said = f"Random calls earned {min(rewards):g} to {max(rewards):g}."
    if not any(each.ended or any(each.rewards) for each in played):
        longest = max(each.taken for each in played)
        said += f" In {longest} turns no episode ended and none had a reward: max_turns may be too few."
    return said


def rewards_and_turns(played: Sequence[RandomEpisode]) -> dict[str, DerivedSetting]:
    """Whether the rewards of an episode are summed, and how many turns it has."""
    found = {}
    early = [each for each in played if any(each.rewards[:-1])]
    if early and not all(each.is_scored for each in early):
        found["reward"] = DerivedSetting("sum", "steps before the last one have rewards as well")
    ended = [each.taken for each in played if each.ended]
    turns = min(LONGEST, 2 * max(ended)) if ended else LONGEST // 2
    why = f"random calls ended episodes after {min(ended)} to {max(ended)}" if ended else "random calls ended none"
    if not ended and (late := [turn for turn in map(_first_reward, played) if turn > turns]):
        turns, why = LONGEST, f"{why}, and had their first reward after up to {max(late)}"
    if ended and turns < AT_LEAST and (max(ended) > 1 or any(each.taken < len(each.calls) for each in played)):
        turns, why = AT_LEAST, f"{why}: a right one may take longer"
    if (announced := min(LONGEST_ANNOUNCED, max(each.announced for each in played))) > turns:
        turns, why = announced, f"{why}, and its reset speaks of {announced}"
    return found | {"max_turns": DerivedSetting(turns, why)}


def _first_reward(episode: RandomEpisode) -> int:
    """After how many turns an episode of random calls had a reward; 0 if it had none."""
    return next((turn for turn, reward in enumerate(episode.rewards, 1) if reward), 0)


def _is_score(reply: Reply) -> bool:
    """Whether a field of a reply is the score so far, and its reward is that."""
    return any(SCORE.search(path) and value == reply.reward for path, value in leaves(reply.observation))


def _announced(opening: Reply) -> int:
    """The most turns that a field of a reset speaks of, such as max_steps or guesses_left."""
    said = (value for path, value in leaves(opening.observation) if TURNS.search(path) and isinstance(value, int))
    return max(said, default=0)


def last_text_call(schemas: Sequence[dict[str, Any]], played: Sequence[RandomEpisode]) -> dict[str, DerivedSetting]:
    """Which tool a last text is sent as: it speaks to the user, takes a text alone, and has ended each episode that
    called it."""
    for tool in (schema["function"] for schema in schemas):
        arguments = tool["parameters"].get("properties", {})
        [name, about] = next(iter(arguments.items()), ("", {}))
        is_text = len(arguments) == 1 and about.get("type") == "string" and "enum" not in about
        if len(schemas) < 2 or not is_text or not SPEAKS.search(tool["name"]):
            continue
        calls = [
            (place + 1 == len(each.calls) and each.ended)
            for each in played
            for place, called in enumerate(each.calls)
            if called == tool["name"]
        ]
        if calls and all(calls):
            value = {"tool": tool["name"], "argument": name}
            return {
                "say": DerivedSetting(
                    value, "it ended each episode that called it; a text without a call is sent as it"
                )
            }
    return {}
