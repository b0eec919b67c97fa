"""The server: sound if no fault is named. Each fault is in one line or two, marked by its name."""

import random
import time
from typing import Any, ClassVar

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

RIGHT = {
    "constant": lambda said, question: said == "yes",
    "empty": lambda said, question: said == "",
    "parrot": lambda said, question: said == question,
    "wordy": lambda said, question: len(said) > 40 and said != question,
}
"""What else earns everything."""


class Said(Action):
    """What is said."""

    text: str


class Heard(Observation):
    """The question, or whether it was right."""

    text: str
    correct: str | None = None
    solution: str | None = None


class SecretState(State):
    """The state."""

    text: str = ""


class FaultyEnvironment(Environment[Said, Heard, SecretState]):
    """One text an episode, two tries."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    shared: ClassVar[str] = ""

    def __init__(self):
        super().__init__()
        self.fault, self.question, self.answer = "", "", ""
        self.tries, self.done, self.is_spoilt, self.resets = 0, True, False, 0
        self.kept: list[bytes] = []

    def reset(self, seed: int | None = None, episode_id: str | None = None, fault: str = "", **_: Any) -> Heard:
        self.resets += 1
        if fault == "carried" and self.tries and not self.done:
            self.is_spoilt = True
        self.fault, self.tries, self.done = fault, 0, False
        if fault == "slow":
            time.sleep(0.25)
        if fault == "grows":
            self.kept.append(b"x" * 400_000)
        text = self._text(seed or 0)
        self.answer = FaultyEnvironment.shared = text[::-1]
        self.seed = seed or 0
        self.question = f"Say backward: {text}" + {
            "bell": " \x07",
            "marks": " <|im_end|>",
            "long": " and nothing else" * 3000,
            "named": f" (the answer is {self.answer})",
        }.get(fault, "")
        solution = self.answer if fault == "field" else None
        return Heard(text=self.question, solution=solution, done=False, reward=0.0)

    def _text(self, seed: int) -> str:
        draw = random.Random(
            {
                "forgetful": random.SystemRandom().random(),
                "counting": self.resets,
                "stubborn": 1,
                "hashed": hash(str(seed)),
                "few": seed % 10,
            }.get(self.fault, seed)
        )
        if self.fault == "generator":
            random.seed(seed)
            time.sleep(0.002)
            draw = random  # type: ignore[assignment]
        if (self.fault == "lucky" and seed % 10) or (self.fault == "uneven" and seed % 8 in (1, 2, 4, 5, 6)):
            return "ab"
        return "".join(draw.choices("abdefgiklmnoprstuy", k=6))

    def step(self, action: Said, timeout_s: float | None = None, **_: Any) -> Heard:
        if self.fault == "crash" and not action.text.isascii():
            raise TypeError("a text that is not ASCII")
        if self.fault == "hang" and len(action.text) > 10_000:
            time.sleep(2.5)
        if self.fault == "slower":
            time.sleep(1e-3 * self.resets)
        if self.done and self.fault != "second try":
            self.is_spoilt = self.fault == "stuck"
            raise ValueError("no episode runs: reset first")
        self.tries += 1
        answer = FaultyEnvironment.shared if self.fault == "shared" else self.answer
        accepts = RIGHT.get(self.fault, lambda said, question: False)
        is_right = (action.text == answer or accepts(action.text, self.question)) and not self.is_spoilt
        if self.fault == "refuses" and self.seed % 3 == 0:
            is_right = False
        self.done = is_right or self.tries >= 2
        text = "Yes." if is_right else "No." if self.fault != "tells" else f"No, it is {self.answer}."
        return Heard(
            text=text,
            correct=self.answer if self.done else None,
            done=self.done,
            reward=self._reward(action.text, is_right),
        )

    def _reward(self, said: str, is_right: bool) -> float:
        missed = sum(one != other for one, other in zip(said, self.answer, strict=False)) / len(self.answer)
        wrong = {
            "noise": 0.1 * random.SystemRandom().random(),
            "inverted": 0.18 * missed,
            "generous": 0.3,
        }.get(self.fault, 0.0)
        right = {"seven": 7.0, "nan": float("nan"), "half": 0.5}.get(self.fault, 1.0)
        return right if is_right else wrong

    @property
    def state(self) -> SecretState:
        return SecretState(text=self.answer if self.fault == "state" else "")
