"""The filter keeps what is right, well formed and not examined, and counts every cause."""

import json
from typing import Any

import pytest

from apprentice.envs.base import tools_text
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.filter import why_dropped

EXAMINED = {"held out"}


def episode(
    task: EnvironmentSpec,
    reward: float | None = 1.0,
    question: str = "seen",
    failed_at: str = "",
    **turn: Any,
) -> dict:
    arguments = turn.pop("arguments", '{"answer": "-5"}')
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "answer", "arguments": arguments}}],
    }
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": question}, said | turn]
    return {"messages": messages, "tools": tools_text(task.make()), "reward": reward, "failed_at": failed_at}


def test_a_right_and_clean_episode_is_kept(chain_sum: EnvironmentSpec):
    assert why_dropped(episode(chain_sum), EXAMINED) is None


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"reward": 0.33}, "wrong answer"),
        (
            {"reward": None, "failed_at": "teacher"},
            "failed at the teacher",
        ),
        ({"tool_calls": None}, "no tool call"),
        ({"arguments": json.dumps({"answer": 5})}, "arguments off the schema"),
        ({"content": "Let me think: 2 + 3 is 5."}, "leaked reasoning text"),
        ({"question": "held out"}, "stands in the evaluation set"),
    ],
)
def test_each_cause_is_named(chain_sum: EnvironmentSpec, given: dict, cause: str):
    assert why_dropped(episode(chain_sum, **given), EXAMINED) == cause
