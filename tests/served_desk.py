"""The order desk of desk.py as an environment by its file, with its server in this process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apprentice.envs import catalog
from apprentice.envs.catalog import EnvironmentSpec, next_call, server_app
from apprentice.envs.folders import FOLDERS
from apprentice.envs.tools import tools_text
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.tasks.episodes.episode import Episode, turn_of
from apprentice.tasks.episodes.record import Message, Record, as_text, with_arguments
from tests.envs.published.serving import serving

FILE = Path(__file__).with_name("desk.py")


class ServedDesk(NamedTuple):
    task: EnvironmentSpec
    server: EnvironmentServer

    def episode(self, seed: int) -> Episode:
        """An episode on a connection of its own."""
        return Episode(self.task.make(Session(self.server)), seed)

    def played(self, seed: int) -> Episode:
        """An episode that the script has played without a mistake."""
        episode = self.episode(seed)
        while not episode.done:
            episode.step(next_message(episode.messages))
        episode.player.close()
        return episode

    def question(self, seed: int) -> str:
        return self.played(seed).question

    def record(self, seed: int, **given: Any) -> Record:
        """What a collection keeps of such an episode."""
        episode = self.played(seed)
        about = {"environment": "desk 1", "tools": tools_text(episode.player.tools), "takes_text": True}
        messages = with_arguments(episode.messages, as_text)
        return Record(seed=seed, messages=messages, reward=episode.reward, **(about | given))


@contextmanager
def served_desk() -> Iterator[ServedDesk]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDERS, "")
        task = EnvironmentSpec(path=FILE)
        with serving(server_app(task.name, 16)) as url:
            yield ServedDesk(task, EnvironmentServer(url=url, sessions=8, patience=5.0))
    catalog.known.cache_clear()
    del sys.modules[task.name]


def next_message(messages: list[dict[str, Any]]) -> Message:
    """The script's next message."""
    said = next_call("desk", {}, messages, 0.0, None)
    return {"role": "assistant", "content": said} if isinstance(said, str) else turn_of(*said)


OLD, NEW = 5, 3
"""The seeds of an order of five weeks, which is not refunded, and of one of four."""
REFUSAL = "I cannot refund it: it is 5 weeks old."
"""The right answer to the first one."""
