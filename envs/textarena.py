"""Reads TextArena's one cumulative message, with which the published TextArena environment answers.

In: replies whose `messages` have all messages since the reset, as one text. Out: the new part of each.
Read in envs/textarena_env of github.com/huggingface/OpenEnv (385de5eb) and in textarena 0.7.4: LLMObservationWrapper.
"""

import re
from typing import Any

from apprentice.envs.base import ToolEnvironment, whole_characters
from apprentice.envs.wire.reply import BadReply, Reply
from apprentice.envs.wire.session import Refused

SENDER = re.compile(r"\n\[[^\]\n]*\] ")
"""Comes before each message, such as "[Player] " or "[GAME] "."""
TAGS = ("[Player]", "[GAME]")
"""TextArena takes them out of what a player says, one after the other."""
INVALID = re.compile(
    r"\n\[GAME\] (?:You attempted an invalid move\. Reason: )?(.*?)(?: Please resubmit .*)?$", re.DOTALL
)
"""A message that says why a move was refused, with or without the words around it."""


class Transcript:
    """Messages since the reset. Only TextArena's messages are parsed, never the player's."""

    def __init__(self, reply: Reply):
        """Begin with the reply to a reset. Raises BadReply."""
        self.text = _text_of(reply)

    def new(self, reply: Reply, message: str) -> str:
        """Return what TextArena answered to `message`, each part after its sender. Raises BadReply."""
        text = _text_of(reply)
        rest = text.removeprefix(self.text)
        sender = SENDER.match(rest)
        if not text.startswith(self.text) or sender is None:
            raise BadReply("the reply's messages do not continue those before")
        said = whole_characters(message)
        for tag in TAGS:
            said = said.replace(tag, "")
        if not rest.startswith(said, sender.end()):
            raise BadReply("the reply's messages do not repeat the sent message")
        self.text = text
        return rest[sender.end() + len(said) :]


def refusal_in(new: str) -> str:
    """Return why the last move was refused. Raises BadReply where it was not."""
    found = INVALID.match(new)
    if found is None:
        raise BadReply("the reply does not say what became of the move")
    return found[1]


def published_state(environment: ToolEnvironment, game: str, only: str) -> dict[str, Any]:
    """Return the game's state on a server of the published environment, which says there more than in its replies.

    Args:
        game: TextArena's name of the game that the settings ask for.
        only: The settings under which a published server can be played.

    Raises Refused for another game; SessionLost, BadReply.
    """
    state = environment.session.state()
    if (served := state.get("env_id")) != game:
        raise Refused(
            f"the server plays {served if isinstance(served, str) else 'another game'}, and the settings ask for {game}"
            f" ({only})"
        )
    raw = state.get("raw_state")
    told = raw.get("game_state") if isinstance(raw, dict) else None
    return told if isinstance(told, dict) else {}


def _text_of(reply: Reply) -> str:
    count = len(reply.read(list, "messages"))
    return "".join(reply.read(str, "messages", place, "content") for place in range(count))
