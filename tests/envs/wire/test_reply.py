"""A reply is read with the type that it must have, or not at all: none of it becomes a score by mistake."""

import json
from typing import Any

import pytest

from apprentice.envs.wire.reply import LONGEST_TEXT, BadReply, Reply, ServerError, data_of, reply_of


def said(observation: Any = None, **data: Any) -> Reply:
    return reply_of({"observation": {} if observation is None else observation} | data)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf"), "1.0", [1.0], {}, 10**400])
def test_a_reward_that_is_no_finite_number_is_no_reward(reward: Any):
    with pytest.raises(BadReply, match="reward of the reply"):
        said(reward=reward)


def test_a_reward_may_be_whole_or_a_truth_value_as_openenv_allows():
    assert [said(reward=reward).reward for reward in (1, True, 0.25, None)] == [1.0, 1.0, 0.25, None]


def test_an_episode_that_ends_without_a_reward_has_no_score():
    assert said(reward=0.5, done=True).score == 0.5
    with pytest.raises(BadReply, match="has no reward"):
        _ = said(done=True).score


@pytest.mark.parametrize("done", ["yes", 1, 0, None, []])
def test_only_a_truth_value_says_whether_it_is_over(done: Any):
    with pytest.raises(BadReply, match="done"):
        said(done=done)
    assert not said().done


@pytest.mark.parametrize(
    ("value", "kind"), [(True, int), (True, float), ("7", int), (7, str), (None, str), ([], dict), (1.5, int)]
)
def test_a_value_of_another_type_is_not_read(value: Any, kind: type):
    with pytest.raises(BadReply):
        said({"given": value}).read(kind, "given")


def test_a_value_is_found_by_its_path_and_may_be_missing():
    reply = said({"info": {"signals": [0.5, 1]}})
    assert reply.read(float, "info", "signals", 1) == 1.0
    assert reply.find(float, "info", "signals", 7) is None
    assert reply.find(str, "info", "other") is None
    with pytest.raises(BadReply, match=r"no info\.other"):
        reply.read(str, "info", "other")
    with pytest.raises(BadReply, match="is inside"):
        reply.find(str, "info", "signals", 0, "deeper")


def test_a_text_has_a_length_and_whole_characters():
    assert said({"text": "a" * LONGEST_TEXT}).read(str, "text")
    with pytest.raises(BadReply, match="more than 200000"):
        said({"text": "a" * (LONGEST_TEXT + 1)}).read(str, "text")
    with pytest.raises(BadReply, match="lone surrogate"):
        said({"text": "a\ud800"}).read(str, "text")


def message(**parts: Any) -> str:
    return json.dumps(parts)


@pytest.mark.parametrize(
    "raw",
    [
        "<html>",
        "[" * 100_000,
        message(type="state", data={}),
        message(data={}),
        message(type="observation", data=[]),
        message(type="observation"),
        "[]",
    ],
)
def test_what_is_no_answer_to_the_message_is_none(raw: str):
    with pytest.raises(BadReply):
        data_of(raw, "observation")


def test_an_error_of_the_server_keeps_its_code():
    with pytest.raises(ServerError, match="no such dataset") as error:
        data_of(message(type="error", data={"code": "VALIDATION_ERROR", "message": "no such dataset"}), "observation")
    assert error.value.code == "VALIDATION_ERROR"
    errors = [{"loc": ["deed", "move", "shelf"], "msg": "Field required"}, {"msg": "no more"}]
    with pytest.raises(ServerError, match=r"Invalid message: deed\.move\.shelf: Field required; no more"):
        data_of(message(type="error", data={"message": "Invalid message", "errors": errors}), "observation")
    assert data_of(message(type="observation", data={"done": True}), "observation") == {"done": True}
