"""Evaluation protocols, that is prompt and parser: parity with training, or the public tutorial's.

In: an environment, a seed, a tokenizer. Out: the episode, its prompt's token ids, the message that completion ids are.
"""

import re
from typing import Any, Literal

from apprentice.envs.player import Player
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.record import EvaluatedEpisode, Message
from apprentice.tasks.episodes.rendering import parse, prompt_ids
from apprentice.tasks.reporting.errors import Stop

CANNOT_SEE = (
    "This is the tutorial's protocol, for comparison with its figures only. It shows the model no tools, reads the "
    "answer with a regular expression that ignores minus signs, accepts any last number as an answer, and counts "
    "partial credit as accuracy. A perfect player scores 68% on the tutorial's 50 questions (seed 999)."
)
TUTORIAL_TOKENS = 64


class Parity:
    """The prompt and the parser of training."""

    name: Literal["parity", "tutorial"] = "parity"

    def begin(self, player: Player, seed: int) -> Episode:
        """A new episode. Raises SessionLost."""
        return Episode(player, seed)

    def tokens(self, limit: int) -> int:
        """Maximum new tokens of a turn."""
        return limit

    def prompt_ids(self, tokenizer: Any, episode: Episode) -> list[int]:
        return prompt_ids(tokenizer, episode.messages, episode.tools)

    def read(self, tokenizer: Any, ids: list[int], prefix: list[int], episode: Episode) -> Message:
        return parse(tokenizer, ids, prefix, episode.tools)

    def accuracy(self, records: list[EvaluatedEpisode]) -> float:
        return sum(record.is_right for record in records) / len(records)


class Tutorial(Parity):
    """The tutorial's evaluation as printed, with the environment's instructions as its system prompt."""

    name: Literal["parity", "tutorial"] = "tutorial"

    def begin(self, player: Player, seed: int) -> Episode:
        """A new episode. Raises SessionLost; Stop for an environment with other tools than `answer`."""
        return TutorialEpisode(player, seed)

    def tokens(self, limit: int) -> int:
        return TUTORIAL_TOKENS

    def prompt_ids(self, tokenizer: Any, episode: Episode) -> list[int]:
        return tokenizer.apply_chat_template(
            episode.messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )

    def read(self, tokenizer: Any, ids: list[int], prefix: list[int], episode: Episode) -> Message:
        return {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}

    def accuracy(self, records: list[EvaluatedEpisode]) -> float:
        """The mean score, which the tutorial calls accuracy."""
        return sum(record.score for record in records) / len(records)


class TutorialEpisode(Episode):
    """An episode of one text; submits the digits that it finds there, whatever else the text contains."""

    def __init__(self, player: Player, seed: int):
        super().__init__(player, seed)
        if [tool["function"]["name"] for tool in self.tools] != ["answer"]:
            raise Stop(
                "The tutorial's protocol supports only environments with the single tool `answer`; this one has "
                f"{', '.join(tool['function']['name'] for tool in self.tools)}.",
                "Use --protocol parity.",
            )
        self.tools = []

    def step(self, message: Message) -> None:
        """Submits the answer found in the model's text. Raises SessionLost."""
        message = self._taken(message)
        digits = re.search(r'"answer"\s*:\s*"?(\d+)"?', message["content"])
        numbers = re.findall(r"\b(\d+)\b", message["content"])
        if not digits:
            self.causes.append("the regular expression found no answer")
        self._execute("answer", {"answer": digits.group(1) if digits else numbers[-1] if numbers else "0"})
        self.done = True


PROTOCOLS: dict[str, Parity] = {"parity": Parity(), "tutorial": Tutorial()}
