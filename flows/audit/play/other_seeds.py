"""Whether a seed counts: the same calls under several seeds lead elsewhere, and again to the same under one.

In: an environment. Out: whether its replies or rewards follow the seed.
"""

from collections.abc import Sequence
from time import monotonic

from apprentice.envs.player import Player
from apprentice.flows.audit.play.audited_episodes import play
from apprentice.flows.audit.play.guesses import any_call
from apprentice.tasks.episodes.episode import Call, Episode

IGNORES_SEEDS = (
    "A question is its seed, so a server that ignores seeds cannot be used. If its reset takes a task by its name, "
    "list them: environment.tasks: [{task_id: …}, …]. Else its author can draw the start from the seed: "
    "def reset(self, seed=None, …), and random.Random(seed) in place of random."
)
AGAIN = 3
"""Episodes of the first seed that must be the same again: a draw from two is so by chance for every other server."""
SHORT = 5
"""Calls by which episodes of several seeds are compared."""


def lead_elsewhere(player: Player, seeds: Sequence[int], seconds: float = 10.0) -> bool:
    """Whether the same calls have other replies or rewards under another seed, and the same ones again under the first.

    Raises Refused, BadReply, SessionLost.
    """
    until = monotonic() + seconds

    def move(episode: Episode) -> Call | None:
        return any_call(episode) if episode.turns < SHORT and monotonic() < until else None

    first, *others = (play(player, seed, move) for seed in (*seeds, *(seeds[0],) * AGAIN))
    same = [(each.replies, each.rewards) == (first.replies, first.rewards) for each in others]
    return monotonic() < until and all(same[-AGAIN:]) and not all(same)
