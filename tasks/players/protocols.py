"""Evaluation protocols, that is prompt and parser: parity with training, or the public tutorial's.

In: an episode, a tokenizer, a completion. Out: prompt token ids; the message for the episode.
The public SFT tutorial's protocol renders no tools, leaves thinking on, stops at 64 tokens and reads digits with a
regular expression that ignores minus signs, so a perfect player scores 68% on its questions. It exists only for
comparison with the tutorial's figures.
"""

import re
from typing import Any, Literal

from apprentice.envs.base import ToolEnvironment
from apprentice.tasks.episodes.episode import Episode, Message
from apprentice.tasks.episodes.record import EvaluatedEpisode
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

    def begin(self, environment: ToolEnvironment, seed: int) -> Episode:
        """A new episode. Raises SessionLost."""
        return Episode(environment, seed)

    def tokens(self, asked: int) -> int:
        """Maximum new tokens of a turn."""
        return asked

    def prompt_ids(self, tokenizer: Any, episode: Episode) -> list[int]:
        return prompt_ids(tokenizer, episode.messages, episode.tools)

    def read(self, tokenizer: Any, ids: list[int], prefix: list[int], episode: Episode) -> Message:
        return parse(tokenizer, ids, prefix, episode.tools)

    def accuracy(self, records: list[EvaluatedEpisode]) -> float:
        return sum(record.is_right for record in records) / len(records)


class Tutorial(Parity):
    """The tutorial's evaluation as printed, with the environment's instructions as its system prompt."""

    name: Literal["parity", "tutorial"] = "tutorial"

    def begin(self, environment: ToolEnvironment, seed: int) -> Episode:
        """A new episode. Raises SessionLost; Stop for an environment with other tools than `answer`."""
        return TutorialEpisode(environment, seed)

    def tokens(self, asked: int) -> int:
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

    def __init__(self, environment: ToolEnvironment, seed: int):
        super().__init__(environment, seed)
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
