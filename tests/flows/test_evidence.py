"""What a finished run knows of the causes of its ending is read with the limits of its own recipe."""

from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.flows.evidence import evidence_of
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.episodes.thinking import cut_off
from apprentice.tasks.judgement.contents import GateDecision, VerdictContents
from apprentice.tasks.judgement.run_models import Models
from tests.tasks.advice.test_ending import decided, judged
from tests.tasks.evaluations import episode


def said(tokens: int, message: dict[str, Any]) -> EvaluatedEpisode:
    found = episode(0, 0.0, completion_tokens=tokens, unfinished=True, valid=False, causes=["no tool call"])
    return found.model_copy(update={"messages": [*found.messages[:2], message]})


TEXT, THOUGHT = {"role": "assistant", "content": "2."}, cut_off("1 + 1 is")


@pytest.mark.parametrize(
    ("thinking", "tokens", "message", "shares"),
    [
        (None, 60, TEXT, (1.0, 0.0)),
        ({"mode": "text", "max_tokens": 96}, 60, TEXT, (0.0, 0.0)),
        ({"mode": "text", "max_tokens": 96}, 144, TEXT, (1.0, 0.0)),
        ({"mode": "text", "max_tokens": 96}, 144, THOUGHT, (0.0, 1.0)),
        ({"mode": "text", "max_tokens": 96}, 60, THOUGHT, (0.0, 0.0)),
    ],
)
def test_the_budget_of_a_thought_comes_on_top_of_the_limit_of_an_answer(
    thinking: Any, tokens: int, message: dict[str, Any], shares: tuple[float, float]
):
    verdict = judged()
    read, decision = VerdictContents.model_validate(verdict), GateDecision.model_validate(decided(verdict))
    recipe = {"student": {"thinking": thinking}, "evaluate": {"max_new_tokens": 48}}
    played, log = [said(tokens, message)], [{"loss": 0.1, "step": 1, "reward": 0.5, "thought/cut_off": 0.6}]
    models = Models({"base": played, "sft": played, "grpo": played})
    found = evidence_of(read, decision, recipe, EnvironmentSpec(name="echo"), models, None, Models({"grpo": log}))
    assert (found.end.cut, found.end.thought_cut) == shares
    assert found.supervised == found.end
    assert found.thoughts_cut == 0.6
