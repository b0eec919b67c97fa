"""The episodes of a step are played while the model generates, and ask what was recorded."""

from typing import Any

import pytest

from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire import waiting
from apprentice.tasks.rollouts import live_rollouts
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from tests.tasks.rollouts.test_rollout_modes import SEEDS


def test_the_environments_loop_is_woken_once_for_all_rollouts_of_a_turn(chain_sum, server, monkeypatch):
    woken, start = [], waiting.start

    def starting(coroutine: Any) -> Any:
        woken.append(coroutine)
        return start(coroutine)

    monkeypatch.setattr(live_rollouts, "start", starting)
    with EnvironmentPool(chain_sum, server, size=len(SEEDS)) as pool, LiveRollouts(pool) as rollouts:
        pool.open_all()
        questions = {seed: pool.players[0].ask(seed) for seed in SEEDS}
        rollouts.begin([{"seed": seed, "question": questions[seed]} for seed in SEEDS])
        call = {"type": "function", "function": {"name": "answer", "arguments": {"answer": "1"}}}
        rollouts.step({n: {"role": "assistant", "content": "", "tool_calls": [call]} for n in range(len(SEEDS))})
        rollouts.wait()
        assert [environment.done for environment in rollouts.players] == [True] * len(SEEDS)
    assert len(woken) == 2


def test_what_the_server_asks_must_be_what_was_written_down(chain_sum, server):
    from apprentice.tasks.reporting.errors import Stop

    with EnvironmentPool(chain_sum, server, size=1) as pool, LiveRollouts(pool) as rollouts:
        rollouts.begin([{"seed": 3, "question": "Another one?"}])
        call = {"type": "function", "function": {"name": "answer", "arguments": {"answer": "1"}}}
        rollouts.step({0: {"role": "assistant", "content": "", "tool_calls": [call]}})
        with pytest.raises(Stop, match="For seed 3 the server asks another question"):
            rollouts.wait()
