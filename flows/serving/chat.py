"""`apprentice chat` and `apprentice env play --model`: a model acts in its environment, in the terminal.

In: an endpoint of the model, an environment, what a person types. Out: the conversation as it is written; the
environment plays the calls for real and gives the reward.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from apprentice.envs.player import Player
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.record import Message
from apprentice.tasks.episodes.rendering import switch_sent
from apprentice.tasks.formats.served_log import joined
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import LocalEndpoint

Write = Callable[[str], None]
"""Shows a part of a line."""


class Speaker:
    """A model behind an endpoint, whose answers are shown while they are written.

    Args:
        most_tokens: Of one answer. A student's thought has its own room.
    """

    def __init__(self, endpoint: LocalEndpoint, most_tokens: int, write: Write):
        from openai import OpenAI

        self._client = OpenAI(
            base_url=endpoint.base_url, api_key="none-needed", timeout=endpoint.timeout, max_retries=0
        )
        self._model = endpoint.model
        self._most_tokens = most_tokens + endpoint.thought_tokens
        self._switch = switch_sent(thinks=endpoint.thoughts is not None)
        self._write = write

    def say(self, messages: list[Message], tools: list[dict[str, Any]]) -> Message:
        """Return the model's next message. Raises Stop where the endpoint fails."""
        from openai import OpenAIError

        events = []
        try:
            stream: Any = self._client.chat.completions.create(
                model=self._model,
                messages=messages,  # type: ignore[arg-type]
                tools=tools,  # type: ignore[arg-type]
                stream=True,
                temperature=0.0,
                max_tokens=self._most_tokens,
                extra_body=self._switch,
            )
            for chunk in stream:
                events.append(chunk.model_dump())
                for choice in chunk.choices:
                    self._write(choice.delta.content or "")
        except OpenAIError as error:
            raise Stop(
                f"The model's endpoint failed: {' '.join(str(error).split())[:300]}.",
                "Check that it runs (`apprentice serve`), and start again.",
            ) from error
        message = joined(events)
        for call in message.get("tool_calls") or []:
            self._write(f"→ {call['function']['name']}({call['function']['arguments']})")
        self._write("\n")
        return message


@contextmanager
def server_failures() -> Iterator[None]:
    """Raise Stop where the environment's server fails."""
    try:
        yield
    except Refused as refused:
        raise Stop(f"The server refuses the question: {refused}", "Change the settings with --set.") from refused
    except SessionLost as lost:
        raise Stop(f"The connection to the server was lost: {lost}.", "Check that it runs, and play again.") from lost


def watch(player: Player, seed: int, speaker: Speaker, write: Write) -> Episode:
    """Show how a model plays one episode, and return it. Raises Stop."""
    with server_failures():
        episode = Episode(player, seed)
        write(f"{episode.player.instructions}\n\n{episode.question}\n\n")
        while not episode.done:
            _turn(episode, speaker, write)
    _end(episode, write)
    return episode


def chat(player: Player, seed: int, speaker: Speaker, ask: Callable[[str], str], write: Write) -> None:
    """Talk with a model that has the environment's tools; an empty line asks the environment's own question.

    Each text begins an episode of the next seed, so the environment can play the calls. Raises EOFError where the
    person leaves; Stop.
    """
    write(f"{player.part(seed).instructions}\n\nAn empty line asks the environment's question; Ctrl-D ends.\n")
    while True:
        text = ask("you: ")
        with server_failures():
            episode = Episode(player, seed)
            own = bool(text.strip())
            if own:
                episode.messages[1] = episode.messages[1] | {"content": text}
            else:
                write(f"{episode.question}\n")
            while not episode.done:
                _turn(episode, speaker, write)
        if own:
            write("The reward is that of the environment's own question, so none is shown.\n")
        else:
            _end(episode, write)
        seed += 1


def _turn(episode: Episode, speaker: Speaker, write: Write) -> None:
    write("model: ")
    before = len(episode.messages)
    episode.step(speaker.say(episode.messages, episode.tools))
    for reply in episode.messages[before + 1 :]:
        write(f"{reply['name']}: {reply['content']}\n")


def _end(episode: Episode, write: Write) -> None:
    correct = f" The environment's own answer: {episode.player.correct}" if episode.player.correct else ""
    causes = f" {'; '.join(episode.causes)}." if episode.causes else ""
    reward = "no reward" if episode.reward is None else f"reward {episode.reward:.2f} of 1"
    write(f"The episode ended: {reward}.{causes}{correct}\n")
