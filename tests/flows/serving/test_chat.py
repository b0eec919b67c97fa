"""A model acts in its environment in the terminal: what it says is shown, and the environment plays its calls."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec, next_call
from apprentice.envs.player import Player
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.flows.serving.chat import Speaker, chat, watch
from apprentice.tasks.episodes.episode import turn_of


class Answering(Speaker):
    """Knows the answer to every question that the environment asks, and says 5 to all others."""

    def __init__(self, task: EnvironmentSpec, write: Callable[[str], None]):
        self._task = task
        self._write = write

    def say(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
        try:
            turn = next_call(self._task.name, self._task.settings, messages, 0.0, None)
        except ValueError:
            turn = "answer", {"answer": "5"}
        assert not isinstance(turn, str)
        self._write(f"→ {turn[0]}\n")
        return turn_of(*turn)


@pytest.fixture
def player(chain_sum: EnvironmentSpec, server: EnvironmentServer) -> Iterator[Player]:
    session = Session(server)
    yield chain_sum.make(session)
    session.close()


def test_an_episode_is_shown_turn_by_turn_up_to_its_reward(chain_sum: EnvironmentSpec, player: Player):
    written: list[str] = []
    episode = watch(player, 3, Answering(chain_sum, written.append), written.append)
    text = "".join(written)
    assert text.index(episode.question) < text.index("→ answer") < text.index("reward 1.00 of 1")


def test_a_text_of_a_person_takes_the_place_of_the_question_and_has_no_reward(
    chain_sum: EnvironmentSpec, player: Player
):
    written: list[str] = []
    typed = iter(["", "how many are two and three?"])

    def ask(_: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    with pytest.raises(EOFError):
        chat(player, 3, Answering(chain_sum, written.append), ask, written.append)
    own, others = "".join(written).split("reward 1.00 of 1")
    assert "→ answer" in own
    assert "→ answer" in others
    assert "so none is shown" in others
