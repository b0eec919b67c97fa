"""The first resets of a server that somebody else published.

In: a server, and what its resets are sent besides the seed. Out: their replies, with the texts of the session's state;
Stop with what is wrong where a reset fails.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from apprentice.envs.wire.passing import leaves, narrowed
from apprentice.envs.wire.reply import BadReply, Reply
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.flows.audit.play.recorded import Recorded
from apprentice.tasks.reporting.errors import Stop

BUGS = re.compile(
    r"'(?!(?:NoneType|str|int|float|bool|list|dict|tuple|set)')\w+' object has no attribute '[A-Za-z_]\w*'|"
    r"name '\w+' is not defined"
)
"""Errors of a server's own code, whatever it is sent."""
QUESTION = re.compile(
    r"prompt|question|task|instruction|problem|query|goal|objective|message|text|content|description|observation",
    re.IGNORECASE,
)
"""Names of what is more likely a question than another text."""
MENDED = "Its author has to mend it: the server's log may say where."


class FirstReset(NamedTuple):
    """What a reset replies, and the texts of the session's state after it."""

    reply: Reply
    texts: dict[str, str]
    question: Sequence[str] = ()
    """Paths of what is known to be the question."""

    @property
    def whole(self) -> Reply:
        """What can tell the start from another one: of a known question that alone."""
        return narrowed(self.reply._replace(observation=self.reply.observation | {"state": self.texts}), self.question)


def first_resets(
    server: EnvironmentServer, given: dict[str, Any], seeds: Iterable[int] = (1, 1, 2)
) -> list[FirstReset]:
    """The first resets of a session, under these seeds. Raises Stop if a reset needs more than a seed."""
    session, found = Recorded(server), []
    rows = given.get("tasks") or [{}]
    try:
        for seed in seeds:
            named = {given.get("seed_as") or "seed": seed}
            reply = session.reset(**{"seed": seed} | named | given.get("reset", {}) | rows[(seed - 1) % len(rows)])
            try:
                state = session.state()
            except BadReply:  # a server need not tell its state
                state = {}
            texts = {path: each for path, each in leaves(state) if isinstance(each, str)}
            found.append(FirstReset(reply, texts, given.get("question") or ()))
    except SessionLost as lost:
        raise Stop(
            f"{server.url} cannot be trained on as it is: it made no episode ({lost}).",
            "See its log: it may miss a package, a key, or another server that it needs.",
        ) from lost
    except (Refused, BadReply) as error:
        failed = f"{server.url} cannot be trained on as it is: its reset fails"
        if reserved := " and ".join(sorted(given.keys() & {"reset", "tasks"})):
            raise Stop(
                f"{failed} with what you said of {reserved} ({error}).",
                "Correct it, or mend what the server misses.",
            ) from error
        if BUGS.search(str(error)):
            raise Stop(f"{failed} in its own code ({error}).", MENDED) from error
        raise Stop(
            f"{failed} without more than a seed ({error}).",
            "If the server misses a package or a file, mend that. Else say what a reset needs: "
            "--set reset='{scenario: …}', or --set tasks='[{task_id: …}, …]'.",
        ) from error
    finally:
        session.close()
    return found
