"""Reasoning Gym as an OpenEnv environment, on the wire of the published one.

A reset names its question whole (dataset_name, dataset_config or dataset_specs, seed, size); one without any of it goes
on to the next question of the session's dataset, and is refused where the session has none: another dataset is never
served in silence.
"""

import asyncio
import json
from typing import Any
from uuid import uuid4

import reasoning_gym  # noqa: F401 (takes a second or two: when the server starts, not in a session's first reset)
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import ConfigDict, Field

from . import datasets, scoring

LONGEST_QUESTION = 200_000
"""Characters; the longest of a dataset's default has some thousands."""


class ReasoningGymAction(Action):
    """The answer to the current question; 7 is "7"."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    answer: str


class ReasoningGymObservation(Observation):
    """The question after a reset; score, correct answer and the entry's metadata after a step."""

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
        self._size = self._seed = 0
        self._names: set[str] = set()
        self._place = 0  # of the question within the dataset
        self._entry: dict[str, Any] | None = None
        self._state = State(episode_id=None, step_count=0)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        dataset_name: str | None = None,
        dataset_config: dict[str, Any] | None = None,
        dataset_specs: list[dict[str, Any]] | None = None,
        size: int | None = None,
        **_: Any,
    ) -> ReasoningGymObservation:
        """Raises ValueError, in words, for what does not name a question."""
        given = (seed, dataset_name, dataset_config, dataset_specs, size)
        if self._dataset is not None and all(each is None for each in given):
            self._place = (self._place + 1) % self._size
            entry = datasets.item(self._dataset, self._place, self._seed, self._names)
        elif seed is None or dataset_name is None or size is None:
            raise ValueError(
                "a reset names its question whole: dataset_name, dataset_config (or dataset_specs), seed and size; one "
                "without any of them goes on with the session's dataset"
            )
        else:
            entry = self._open(dataset_name, dataset_config or {}, dataset_specs or [], seed, size)
        self._entry = entry
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return ReasoningGymObservation(question=entry["question"], done=False, reward=0.0)

    def _open(self, name: str, config: dict[str, Any], specs: datasets.Specs, seed: int, size: int) -> dict[str, Any]:
        """The first question of the dataset that is named, which is the session's from now on."""
        try:
            datasets.check(name, config, specs)
            datasets.check_hashing(name, specs)
            if not 1 <= size <= datasets.MOST:
                raise ValueError(f"size must be 1 to {datasets.MOST}")
            if size == 1:
                dataset, entry = datasets.entry(name, config, seed, specs)
            else:
                dataset = datasets.dataset_of(name, config, seed, size, specs)
                entry = datasets.item(dataset, 0, seed, datasets.names_of(name, specs))
            if len(entry["question"]) > LONGEST_QUESTION:
                raise ValueError(f"its question has {len(entry['question'])} characters, more than {LONGEST_QUESTION}")
        except ImportError:
            raise  # it is not the configuration that is wrong
        except Exception as error:  # whatever a dataset raises for a configuration of the wrong types
            raise ValueError(f"Reasoning Gym refuses {name} with {specs or config}: {error}") from error
        self._dataset, self._size, self._place = dataset, size, 0
        self._seed, self._names = seed, datasets.names_of(name, specs)
        return entry

    def step(self, action: ReasoningGymAction, timeout_s: float | None = None, **_: Any) -> ReasoningGymObservation:
        if self._entry is None:
            raise ValueError("no episode runs: reset first")
        entry, self._entry = self._entry, None
        score, problem = scoring.score(self._dataset, entry, action.answer)
        self._state.step_count += 1
        metadata = json.loads(json.dumps(entry["metadata"], default=str, skipkeys=True))
        return ReasoningGymObservation(
            score=score,
            correct_answer=entry["answer"],
            dataset_metadata=metadata | ({"score_problem": problem} if problem else {}),
            done=True,
            reward=score,
        )

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **given: Any
    ) -> ReasoningGymObservation:
        """As `reset`; on the server's loop where the question costs less than a thread, else beside it."""
        named = given.get("dataset_name"), given.get("dataset_config") or {}, given.get("dataset_specs") or []
        try:
            quick = given.get("size") == 1 and datasets.is_ready(*named)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            quick = True  # what is no dataset is refused at once
        if quick:
            return self.reset(seed, episode_id, **given)
        return await asyncio.to_thread(self.reset, seed, episode_id, **given)

    async def step_async(
        self, action: ReasoningGymAction, timeout_s: float | None = None, **given: Any
    ) -> ReasoningGymObservation:
        """As `step`."""
        return self.step(action, timeout_s, **given)

    @property
    def state(self) -> State:
        return self._state
