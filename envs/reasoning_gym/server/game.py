"""Reasoning Gym as an OpenEnv environment, wire-compatible with the published one.

A reset names its question whole (dataset, configuration, seed); one without any of it goes on to the session's next
question, and is refused where the session has none: the published server would serve another dataset in silence.
"""

from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from . import datasets


class ReasoningGymAction(Action):
    """The answer to the current question."""

    answer: str


class ReasoningGymObservation(Observation):
    """The question after a reset; the score and the correct answer after a step."""

    question: str | None = None
    score: float | None = Field(default=None, ge=0.0, le=1.0)
    correct_answer: str | None = None
    dataset_metadata: dict[str, Any] | None = None


class ReasoningGymEnvironment(Environment[ReasoningGymAction, ReasoningGymObservation, State]):
    """One question an episode. Sessions share nothing that changes."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._dataset: Any = None
        self._entry: dict[str, Any] | None = None
        self._state = State(episode_id=None, step_count=0)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        dataset_name: str | None = None,
        dataset_config: dict[str, Any] | None = None,
        size: int = 1,
        **_: Any,
    ) -> ReasoningGymObservation:
        if seed is None or dataset_name is None or size != 1:
            raise ValueError("a reset names its question whole: dataset_name, dataset_config, seed and size=1")
        config = dataset_config or {}
        try:
            datasets.check_name(dataset_name)
            self._dataset, self._entry = datasets.entry(dataset_name, config, seed)
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(f"Reasoning Gym refuses {dataset_name} with {config}: {error}") from error
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return ReasoningGymObservation(question=self._entry["question"], done=False, reward=0.0)

    def step(self, action: ReasoningGymAction, timeout_s: float | None = None, **_: Any) -> ReasoningGymObservation:
        if self._entry is None:
            raise ValueError("no episode runs: reset first")
        score = float(self._dataset.score_answer(answer=action.answer, entry=self._entry))
        correct, self._entry = self._entry["answer"], None
        self._state.step_count += 1
        return ReasoningGymObservation(score=score, correct_answer=correct, done=True, reward=score)

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **given: Any
    ) -> ReasoningGymObservation:
        """As `reset`; on the server's loop, since a thread for each session costs more than the question."""
        return self.reset(seed, episode_id, **given)

    async def step_async(
        self, action: ReasoningGymAction, timeout_s: float | None = None, **given: Any
    ) -> ReasoningGymObservation:
        """As `step`."""
        return self.step(action, timeout_s, **given)

    @property
    def state(self) -> State:
        return self._state
