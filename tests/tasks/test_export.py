"""A model's files for llama.cpp are measured as the model itself was, a thought and its tokens included."""

from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.exporting import evaluated_model
from apprentice.tasks import export as exporting
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import parent
from apprentice.tasks.artifacts.types import Artifact, Evaluation
from apprentice.tasks.engine.run import StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.episodes.thinking import CUT_OFF, THOUGHT, think
from apprentice.tasks.export import export, same_prompts
from apprentice.tasks.lineage.node import node_of
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.serving.engine import Engine
from apprentice.tasks.settings.spec import EvaluateSpec, ExportSpec, ThinkingSpec
from tests.endpoint import Endpoint, say
from tests.students_page import templates, toy_tokenizer
from tests.tasks.evaluations import episodes, published
from tests.tasks.family import Family
from tests.tasks.test_served import Case

OFF = {"chat_template_kwargs": {"enable_thinking": False}}
THOUGHTS = [ThinkingSpec(mode="text", max_tokens=96), ThinkingSpec(mode="native", max_tokens=96)]


class Standing(Engine):
    """An engine of this process."""

    def __init__(self, endpoint: Endpoint):
        self.url, self.model = endpoint.url.removesuffix("/v1"), "student"


def turn(finish: str = "stop", **message: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
    """A turn of llama.cpp's server; without a call if it is cut off."""
    function = {"name": "answer", "arguments": '{"answer": "85"}'}
    calls = [{"id": "1", "type": "function", "function": function}] if finish == "stop" else None
    status, headers, body = say("", finish)
    body["choices"][0]["message"] |= {"tool_calls": calls} | message
    return status, headers, body


@pytest.fixture
def case(context: StageContext, chain_sum: EnvironmentSpec, server: EnvironmentServer) -> Case:
    context.run.servers = StandingServers({"reasoning_gym": server}, None)
    return Case(context, chain_sum)


def played(case: Case, endpoint: Endpoint, thinking: ThinkingSpec | None) -> list[EvaluatedEpisode]:
    spec = EvaluateSpec(questions=2, max_new_tokens=48)
    return exporting._play(case.context, spec, Standing(endpoint), "f16", case.task, case.questions, thinking)


@pytest.mark.parametrize(
    ("thinking", "message", "most", "switch"),
    [
        (None, {}, 48, OFF),
        (THOUGHTS[0], {"content": "47 + 38 = 85."}, 48 + 96, {}),
        (THOUGHTS[1], {"reasoning_content": "47 + 38 = 85."}, 48 + 96, {}),
    ],
)
def test_a_file_of_a_student_that_thinks_is_asked_with_room_for_its_thought_and_its_thought_is_read(
    case: Case, thinking: ThinkingSpec | None, message: dict[str, Any], most: int, switch: dict[str, Any]
):
    endpoint = Endpoint(turn(**message))
    records = played(case, endpoint, thinking)
    assert [request["max_tokens"] for request in endpoint.requests] == [most] * 2
    assert {name: each for name, each in endpoint.requests[0].items() if name in OFF} == switch
    assert [record.messages[2].get(THOUGHT) for record in records] == [thinking and "47 + 38 = 85."] * 2
    assert [record.valid for record in records] == [True] * 2


def test_a_thought_without_an_end_is_named_as_the_checkpoints_is(case: Case):
    records = played(case, Endpoint(turn("length", reasoning_content="47 + 38 =")), THOUGHTS[1])
    assert [(record.messages[2][CUT_OFF], record.causes) for record in records] == [(True, ["thought cut off"])] * 2


@pytest.mark.parametrize(("mode", "switch"), [(None, OFF), ("text", {}), ("native", {})])
def test_prompts_are_compared_as_they_are_sent_while_a_file_is_measured(
    chain_sum: EnvironmentSpec, mode: Any, switch: dict[str, Any]
):
    tokenizer = think(prepare_tokenizer(toy_tokenizer(templates()["qwen3"])), ThinkingSpec(mode=mode) if mode else None)
    endpoint = Endpoint(lambda request: (200, {}, {"prompt": "p"} if "messages" in request else {"tokens": []}))
    asked = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": ""}]
    before = [episodes([1.0])[0].model_copy(update={"messages": asked})]
    assert same_prompts(Standing(endpoint), tokenizer, chain_sum, before, 1) == (0, 1)
    assert {name: each for name, each in endpoint.requests[0].items() if name in OFF} == switch


def test_the_export_of_a_student_that_thinks_has_another_key_than_one_that_was_measured_without(case: Case):
    counts = {"model": "m", "protocol": "parity", "n": 1, "cost_usd": 0.0}
    counts |= {"format_compliance": 1.0, "accuracy": 1.0, "mean_score": 1.0}
    judged = published(case.store, Evaluation, "e" * 20, {"episodes.jsonl": ""}, counts)
    plain = ExportSpec(quantize=["q8_0"])

    def key(spec: ExportSpec) -> str:
        given = spec, EvaluateSpec(), case.student, judged, case.task, case.questions, "version: 1"
        return export.key(given, {})

    assert plain.of(None) is plain
    assert len({key(plain), *(key(plain.of(each)) for each in THOUGHTS)}) == 3
    assert key(plain.of(THOUGHTS[0])) != key(plain.of(ThinkingSpec(mode="text", max_tokens=97)))
    assert set(plain.in_key()) == {"quantize", "margin", "prompts"}, "the key of a student that answers at once"


@pytest.mark.parametrize("forced", [{"thought_budget": 0.0}, {"swapped_thoughts": True}])
def test_files_are_compared_with_the_evaluation_in_which_the_model_ended_its_thoughts_itself(
    tmp_path: Path, chain_sum: EnvironmentSpec, forced: dict[str, Any]
):
    family = Family(LocalStore(tmp_path / "store", "toy"), tmp_path, chain_sum)
    counts = family.evaluations["grpo"].model_dump(exclude=set(Artifact.model_fields))

    def chosen(n: int, **given: Any) -> EvaluateSpec:
        """The evaluation that an export takes after this one was made."""
        settings = {"spec": EvaluateSpec.model_validate(given), "environment": family.task, "seed": 0}
        inputs = {"checkpoint": family.grpo, "questions": family.questions}
        family.make(Evaluation, "evaluate", {"episodes.jsonl": f"{n}\n"}, counts | {"n": n}, settings, inputs)
        return evaluated_model(node_of(family.store, parent(family.grpo), {}), chain_sum)[0]

    assert chosen(8, **forced) == EvaluateSpec.model_validate(forced), "there is no other"
    assert chosen(4) == EvaluateSpec()
