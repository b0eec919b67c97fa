"""A model acts in its environment in the terminal: what it says is shown, and the environment plays its calls."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec, next_call
from apprentice.envs.player import Player
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.flows.serving import served
from apprentice.flows.serving.chat import Speaker, chat, watch
from apprentice.flows.serving.served import answering
from apprentice.flows.serving.target import Target
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Checkpoint, SftCheckpoint
from apprentice.tasks.episodes.episode import turn_of
from apprentice.tasks.episodes.thinking import THOUGHT, think
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.serving.engine import Engine
from apprentice.tasks.settings.endpoint import LocalEndpoint
from apprentice.tasks.settings.spec import ThinkingSpec
from tests.endpoint import Endpoint
from tests.students_page import templates, toy_tokenizer
from tests.tasks.evaluations import published

THINKING = ThinkingSpec(mode="native", max_tokens=96)
SWITCH = {"enable_thinking": False}


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


def streamed(*deltas: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """An answer in parts."""
    about = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "toy"}
    events = [about | {"choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in deltas]
    text = "".join(f"data: {json.dumps(each)}\n\n" for each in events)
    return 200, {"Content-Type": "text/event-stream"}, f"{text}data: [DONE]\n\n".encode()


@pytest.mark.parametrize(("thinking", "most", "switch"), [(None, 48, SWITCH), (THINKING, 48 + 96, None)])
def test_a_student_that_thinks_is_talked_to_with_room_for_its_thought_and_without_a_switch(
    thinking: ThinkingSpec | None, most: int, switch: dict[str, bool] | None
):
    endpoint = Endpoint(streamed({THOUGHT: "2 + 3 = "}, {THOUGHT: "5."}, {"content": "It is 5."}))
    with answering(f"{endpoint.url}#student", Path(), None, None, thinking) as found:
        message = Speaker(found, 48, lambda _: None).say([{"role": "user", "content": "2 + 3"}], [])
    assert message == {"role": "assistant", "content": "It is 5.", THOUGHT: "2 + 3 = 5."}
    [request] = endpoint.requests
    assert (request["max_tokens"], request.get("chat_template_kwargs")) == (most, switch)


class Standing(Engine):
    """An engine that answers already."""

    def __init__(self) -> None:
        self.url, self.model = "http://127.0.0.1:9", "student"

    def wait_ready(self, patience: float = 0.0) -> None:
        pass

    def stop(self) -> None:
        pass


class Started(Target):
    """Starts no process."""

    def start(self, model: Checkpoint) -> Engine:
        return Standing()


@pytest.mark.parametrize("thinking", [None, THINKING])
def test_a_model_that_is_started_for_a_chat_says_itself_how_it_thinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thinking: ThinkingSpec | None
):
    store = LocalStore(tmp_path, "toy")
    template = think(prepare_tokenizer(toy_tokenizer(templates()["qwen3"])), thinking).chat_template
    counts = {"parameters": 1, "stage": "sft"}
    model = published(store, SftCheckpoint, "b" * 20, {"chat_template.jinja": template}, counts)
    started = Started(store, model, "transformers", 1, 512)
    monkeypatch.setattr(served, "target_of", lambda *_, **__: started)
    with answering(model.key, tmp_path, None, "transformers") as found:
        assert isinstance(found, LocalEndpoint)
        assert found.thought_tokens == (96 if thinking else 0)
        assert (found.thoughts is None) is (thinking is None)
