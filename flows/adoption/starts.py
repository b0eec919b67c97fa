"""How a server that somebody else published begins its episodes: by the seed, always alike, in turn, or at random.

In: a server, its first resets, and the environment as far as it is known. Out: settings of its recipe, each with what
it follows from; Stop where it begins at random.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from time import monotonic
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.openenv.tasks import rows_of
from apprentice.envs.player import Player
from apprentice.envs.wire.passing import difference
from apprentice.envs.wire.reply import BadReply, Reply, one_line
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.flows.adoption.first_resets import FirstReset, first_resets
from apprentice.flows.audit.play.audited_episodes import play
from apprentice.flows.audit.play.guesses import any_call
from apprentice.flows.audit.play.other_seeds import IGNORES_SEEDS, lead_elsewhere
from apprentice.flows.audit.play.recorded import Recorded
from apprentice.flows.recipe.adopted_recipe import DerivedSetting
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.reporting.errors import Stop

SECONDS = 10.0
"""After which no further reset is asked for."""
MANY = 16
"""Resets that must be the same under another name of the seed: a draw from two may be so for a while."""
SEED_NAMES = ("random_seed", "env_seed", "task_seed", "index", "idx", "task_index", "task_idx")
"""What a reset may call the seed."""
LATER = 3
"""Seeds behind the first one that fails, of which none may be taken."""
RESETS = 24
"""Resets of a session that are compared, where they differ: half of them may be tasks that it goes through in turn."""
REPEATS, REPEAT_SECONDS = 8, 3.0
"""Further resets under one seed, and for how long."""
ASKED, FEW = 200, 100
"""Seeds that are asked for their start, and from how many different ones on windows have enough of their own."""


def kind_of_start(
    server: EnvironmentServer, first: list[FirstReset], given: dict[str, Any], unknown: str
) -> dict[str, DerivedSetting]:
    """Whether the seed is the question, or there is one start. Raises Stop for random starts.

    Args:
        unknown: Where the server lists tasks whose name in a reset is not known.
    """
    one, again, other = (each.whole for each in first)
    if differs := difference(one, again) or next(filter(None, _again(server, given, one, of_a_session=True)), None):
        one, again = (first_resets(server, given, seeds=(1,))[0].whole for _ in range(2))
        if difference(one, again) or any(_again(server, given, one, of_a_session=False)):
            if "seed_as" not in given and (named := _seed_by_another_name(server, given)):
                return named
            asks = f" Where {differs.partition(' ')[0]} is no part of the question, say what is, and what answers an "
            asks += "action: --set question='[…]' --set reply='[…]'."
            listed = f" It lists tasks at {unknown}." if unknown.startswith("/") else ""
            raise Stop(
                f"{server.url} cannot be trained on: the same seed gave two different starts ({differs}).{listed}",
                IGNORES_SEEDS + asks,
            )
        other = first_resets(server, given, seeds=(2,))[0].whole
        if not ("one_task" in given or difference(one, other)) and (rotation := _rotation(server, given)):
            return {
                "rotation": DerivedSetting(rotation, f"the resets of a session go through {rotation} starts in turn")
            }
        new = {"new_sessions": DerivedSetting(True, "only the first reset of a session repeats")}
        return _same_start(one, other, unknown) | new
    return _same_start(one, other, unknown)


def _seed_by_another_name(server: EnvironmentServer, given: dict[str, Any]) -> dict[str, DerivedSetting]:
    """The name by which a reset takes the seed, where it draws its start under `seed`."""
    until = monotonic() + SECONDS
    by_all = given | {"reset": given.get("reset", {}) | dict.fromkeys(SEED_NAMES, 1)}
    if (both := _replies(server, by_all, (1, 1))) and difference(*both):  # a session may be slow to begin: one for all
        return {}
    for name in SEED_NAMES:
        if monotonic() > until:
            break
        session = given | {"seed_as": name}
        if not (both := _replies(server, session, (1, 1))) or difference(*both):
            continue
        if not (replies := _replies(server, session, (*(1,) * MANY, 2))):
            continue
        first, *others, other = replies
        if not any(difference(first, each) for each in others) and difference(first, other):
            return {"seed_as": DerivedSetting(name, "its resets draw a start of their own unless this is the seed")}
    return {}


def _replies(server: EnvironmentServer, session: dict[str, Any], seeds: Sequence[int]) -> list[Reply]:
    """The resets of a session; none where they do not take what is asked."""
    with suppress(Stop):
        return [each.whole for each in first_resets(server, session, seeds)]
    return []


def _again(server: EnvironmentServer, given: dict[str, Any], one: Reply, *, of_a_session: bool) -> Iterator[str | None]:
    """Yield how further resets under one seed differ from a start, in one session or each in a new one: a start that
    is drawn from two is the same three times in a row for every fourth server."""
    until = monotonic() + REPEAT_SECONDS
    seeds = (1 for _ in range(REPEATS) if monotonic() < until)
    with suppress(Stop):  # they end
        if of_a_session:
            yield from (difference(one, each.whole) for each in first_resets(server, given, seeds))
        else:
            yield from (difference(one, first_resets(server, given, (seed,))[0].whole) for seed in seeds)


def _rotation(server: EnvironmentServer, given: dict[str, Any]) -> int:
    """After how many resets a session begins as at first, and goes on so; 0 if it does not."""
    began = monotonic()
    try:
        first_resets(server, given, seeds=(1,))
        if 2 * RESETS * (monotonic() - began) > SECONDS:
            return 0
        once, again = ([each.whole for each in first_resets(server, given, seeds=(1,) * RESETS)] for _ in range(2))
    except Stop:  # they end
        return 0
    if any(map(difference, once, again)):
        return 0
    turns = range(2, RESETS // 2 + 1)
    return next((turn for turn in turns if not any(map(difference, once, once[turn:]))), 0)


def _same_start(one: Reply, other: Reply, unknown: str) -> dict[str, DerivedSetting]:
    if difference(one, other):
        return {}
    why = "other seeds gave the same start: there is one task"
    if unknown:
        those = f"those at {unknown}" if unknown.startswith("/") else f"several by {unknown}"
        why += f", or one of {those}: what a reset calls it, you know (--set tasks=[{{name: …}}, …])"
    return {"one_task": DerivedSetting(True, why)}


def after_a_step(server: EnvironmentServer, spec: EnvironmentSpec) -> dict[str, DerivedSetting]:
    """A session for each episode, where a reset after a step shows what the first one of a session does not: a count
    of all its steps, or what is left of the episode before."""
    why = "a reset after a step shows another start than the first one of a session"
    with closing(Recorded(server)) as session, suppress(Refused, BadReply, SessionLost):
        player = spec.make(session)
        first = play(player, 0, lambda episode: None if episode.turns else any_call(episode)).question
        if same_text(player.ask(0)) != same_text(first):
            player.renew()
            if same_text(player.ask(0)) == same_text(first):
                return {"new_sessions": DerivedSetting(True, why)}
    return {}


def by_seed(server: EnvironmentServer, spec: EnvironmentSpec) -> dict[str, DerivedSetting]:
    """Seeds as tasks, where every seed has the same start and the same calls lead elsewhere under another seed."""
    why = "every seed has the same start, and the same calls lead elsewhere: each of so many seeds is a task"
    with closing(Recorded(server)) as session, suppress(Refused, BadReply, SessionLost):
        if lead_elsewhere(without(spec, "one_task").make(session), range(1, 5)):
            return {"tasks": DerivedSetting(FEW, why)}
    return {}


def few_starts(server: EnvironmentServer, spec: EnvironmentSpec) -> dict[str, DerivedSetting]:
    """The seeds that stand for all starts as tasks, where seeds give too few for windows of their own."""
    if spec.questions is not None:
        return {}
    session, until = Recorded(server), monotonic() + SECONDS
    player, found, seed = spec.make(session), {}, 0
    try:
        while seed < ASKED and monotonic() < until:
            found.setdefault(same_text(player.ask(seed)), seed)
            seed += 1
    except Refused as refused:
        return _ended(player, seed, spec, refused)
    except (BadReply, SessionLost):
        return {}
    finally:
        session.close()
    if seed < 2 * len(found) or len(found) > FEW:
        return {}
    rows = [_row(spec, seed) for seed in found.values()]
    return {"tasks": DerivedSetting(rows, f"{seed} seeds gave {len(found)} different starts: each is a task")}


def _row(spec: EnvironmentSpec, seed: int) -> dict[str, Any]:
    """What a reset is sent under a seed, as a task."""
    tasks = spec.settings.get("tasks") or [{}]
    return tasks[seed % len(tasks)] | {spec.settings.get("seed_as") or "seed": seed}


def _ended(player: Player, failed: int, spec: EnvironmentSpec, refused: Refused) -> dict[str, DerivedSetting]:
    """The seeds before the first one that fails, as tasks. Raises Stop where later ones do not fail."""
    for seed in range(failed + 1, failed + 1 + LATER):
        try:
            player.ask(seed)
        except Refused:
            continue
        raise Stop(
            f"It cannot be trained on: its reset fails under seed {failed}, and not under seed {seed} ({refused}).",
            "Its author has to mend it. Else name rows that it takes: --set tasks='[{seed: 0}, …]'.",
        )
    rows = [_row(spec, seed) for seed in range(failed)]
    tasks = failed if rows == rows_of(failed) else rows
    return {"tasks": DerivedSetting(tasks, f"seed {failed} and those after it fail ({one_line(str(refused), 80)})")}


def without(spec: EnvironmentSpec, setting: str, **others: Any) -> EnvironmentSpec:
    return spec.with_settings({name: value for name, value in spec.settings.items() if name != setting} | others)
