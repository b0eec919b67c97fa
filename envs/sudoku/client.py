"""A typed client of the server, for those who have this folder and not the rest. Written by `make spaces`."""

from typing import Any

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.types import State

from .models import SudokuAction, SudokuObservation


class SudokuEnv(EnvClient[SudokuAction, SudokuObservation, State]):
    """An episode: `reset` with what names the question, then `step` until it is done."""

    def _step_payload(self, action: SudokuAction) -> dict[str, Any]:
        return action.model_dump(mode="json", exclude={"metadata"})

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[SudokuObservation]:
        rest = {"reward": payload.get("reward"), "done": payload.get("done", False)}
        observation = SudokuObservation.model_validate(payload["observation"] | rest)
        return StepResult(observation=observation, **rest)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State.model_validate(payload)
