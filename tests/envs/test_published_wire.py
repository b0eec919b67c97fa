"""Whoever speaks the wire of the published Reasoning Gym environment can play on our server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import reasoning_gym
from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient

from apprentice.envs.wire.server import EnvironmentServer


class PublishedAction(Action):
    answer: str


class PublishedObservation(Observation):
    question: str | None = None
    score: float | None = None
    correct_answer: str | None = None
    dataset_metadata: dict[str, Any] | None = None


class PublishedClient(EnvClient[PublishedAction, PublishedObservation, State]):
    """What the published package's client does, against the published models: no field more or less."""

    def _step_payload(self, action: PublishedAction) -> dict[str, Any]:
        return {"answer": action.answer}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[PublishedObservation]:
        rest = {"reward": payload["reward"], "done": payload["done"]}
        return StepResult(observation=PublishedObservation(**payload["observation"], **rest), **rest)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(episode_id=payload["episode_id"], step_count=payload["step_count"])


@pytest.fixture
def client(server: EnvironmentServer) -> Iterator[Any]:
    with PublishedClient(base_url=server.url).sync() as one:
        yield one


def test_a_dataset_of_ten_is_played_by_bare_resets_and_begins_anew_at_its_end(client: Any):
    ten = list(reasoning_gym.create_dataset("leg_counting", seed=42, size=10))
    result = client.reset(dataset_name="leg_counting", seed=42, size=10)
    for entry in ten:
        assert result.observation.question == entry["question"]
        assert (result.observation.score, result.done, result.reward) == (None, False, 0.0)
        result = client.step(PublishedAction(answer=entry["answer"]))
        assert (result.observation.score, result.done, result.reward) == (1.0, True, 1.0)
        assert result.observation.correct_answer == entry["answer"]
        assert result.observation.dataset_metadata["source_dataset"] == "leg_counting"
        result = client.reset()
    assert result.observation.question == ten[0]["question"]
    assert client.state().step_count == 0


def test_a_composite_dataset_is_played_as_the_published_page_shows(client: Any):
    specs = [
        {"name": "leg_counting", "weight": 3, "config": {}},
        {"name": "spell_backward", "weight": 1, "config": {"min_word_len": 3, "max_word_len": 5}},
    ]
    result = client.reset(dataset_name="composite", dataset_specs=specs, seed=42, size=20)
    datasets = set()
    for _ in range(20):
        assert result.observation.question
        datasets.add(client.step(PublishedAction(answer="4")).observation.dataset_metadata["source_dataset"])
        result = client.reset()
    assert datasets == {"leg_counting", "spell_backward"}


def test_a_bare_reset_without_a_dataset_is_refused_and_the_session_can_still_play(client: Any):
    with pytest.raises(RuntimeError, match="names its question whole"):
        client.reset()
    assert client.reset(dataset_name="gcd", seed=1, size=1).observation.question


def test_a_client_without_types_plays_too(server: EnvironmentServer):
    with GenericEnvClient(base_url=server.url).sync() as client:
        client.reset(dataset_name="chain_sum", dataset_config={"min_terms": 2, "max_terms": 2}, seed=3, size=5)
        reply = client.step({"answer": "no number"})
        assert reply.done
        fields = set(reply.observation) - {"metadata"}  # which openenv 0.10 adds
        assert fields == {"question", "score", "correct_answer", "dataset_metadata"}


def test_many_sessions_at_once_have_datasets_of_their_own(server: EnvironmentServer):
    def play(seed: int) -> bool:
        expected = reasoning_gym.create_dataset("chain_sum", seed=seed, size=10)
        with PublishedClient(base_url=server.url).sync() as client:
            questions = [client.reset(dataset_name="chain_sum", seed=seed, size=10).observation.question]
            for _ in range(9):
                client.step(PublishedAction(answer="1"))
                questions.append(client.reset().observation.question)
        return questions == [entry["question"] for entry in expected]

    with ThreadPoolExecutor(12) as executor:
        assert all(executor.map(play, range(12)))
