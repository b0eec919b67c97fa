"""A first look at a server is not misled by what changes on every reset, nor by what random calls do not reach."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.adoption import listed_tasks
from apprentice.flows.cli.adopt import adopt
from apprentice.flows.recipe.adopted_recipe import training_lines
from apprentice.tasks.reporting.errors import Stop
from tests.envs.published import traps
from tests.envs.published.serving import serving

pytestmark = pytest.mark.long
APPS: dict[str, Callable[[], Any]] = {
    "tokens": lambda: traps.served(traps.Tokens),
    "tested": lambda: traps.served(traps.Tested),
    "noisy": lambda: traps.served(traps.Noisy),
    "scoreboard": lambda: traps.served(traps.Scoreboard),
    "attempts": lambda: traps.served(traps.Attempts),
    "ladder": lambda: traps.served(traps.Ladder),
    "zero": lambda: traps.served(traps.Zero),
    "same": lambda: traps.served(traps.Same),
    "other name": lambda: traps.served(traps.OtherName),
    "numbered": lambda: traps.served(traps.Numbered),
    "dice": lambda: traps.served(traps.Dice),
    "long": lambda: traps.served(traps.Long),
    "toolbox": lambda: traps.served(traps.Toolbox, traps.Called),
    "market": lambda: traps.called(traps.Market, traps.Shop),
    "talk": lambda: traps.called(traps.Talk, traps.Chat),
    "names by level": lambda: traps.listing({"tasks": {"easy": ["a_1", "a_2"], "hard": ["b_1"]}}),
}


def written(name: str, **given: Any) -> tuple[str, dict[str, Any]]:
    with serving(APPS[name]()) as url:
        text = adopt(EnvironmentServer(url=url, message_timeout=60), url, "gpt-5-mini", given=given)
    return text, yaml.safe_load(text)["environment"]


@pytest.mark.parametrize(
    ("server", "given", "found", "left_out"),
    [
        ("tokens", {}, {"max_turns": 5}, {"one_task", "tasks", "new_sessions"}),
        ("tested", {}, {}, {"one_task", "tasks", "new_sessions"}),
        ("noisy", {"reply": ["score"]}, {}, {"one_task", "tasks", "new_sessions"}),
        ("scoreboard", {"question": ["question"], "reply": ["feedback"]}, {}, {"one_task", "tasks", "new_sessions"}),
        ("attempts", {}, {"max_turns": 10}, {"reward"}),
        ("ladder", {}, {"max_turns": 15, "reward": "sum"}, {"one_task"}),
        ("other name", {}, {"seed_as": "random_seed"}, {"one_task", "tasks"}),
        ("other name", {"seed_as": "random_seed"}, {"seed_as": "random_seed"}, {"one_task", "tasks"}),
        ("numbered", {}, {"tasks": [{"difficulty": each} for each in (1, 2, 3)]}, {"one_task"}),
        ("names by level", {}, {"tasks": [{"task_id": each} for each in ("a_1", "a_2", "b_1")]}, {"one_task"}),
        ("toolbox", {}, {}, {"question", "one_task"}),
        ("market", {}, {"question": ["objective", "budget", "prices"]}, {"one_task"}),
        ("talk", {}, {"question": ["messages.0.content", "messages.1.content"]}, {"one_task"}),
    ],
)
def test_what_follows_the_seed_and_what_is_earned_is_found(
    server: str, given: dict[str, Any], found: dict[str, Any], left_out: set[str]
):
    _, environment = written(server, **given)
    assert found.items() <= environment.items()
    assert not left_out & environment.keys()


@pytest.mark.parametrize(
    ("server", "why", "remedy"),
    [
        ("scoreboard", r"two different starts \(scoreboard.episodes is", r"--set question='\[…\]' --set reply="),
        ("zero", "seed 0 gave two different questions, and no other seed did", r"windows.collect.start: 1"),
        ("noisy", "the same question, but not the same episode .*feedback is", r"environment.reply: \[…\]"),
        ("dice", "its sessions draw from one random generator", r"random.Random\(seed\)"),
    ],
)
def test_what_differs_is_named_with_a_remedy(server: str, why: str, remedy: str):
    with pytest.raises(Stop, match=why) as stopped:
        written(server)
    assert stopped.match(remedy)


def test_a_text_that_is_too_long_is_not_said_to_be_none():
    assert (
        "Not shown unless `question` names it, as it is longer than 20,000 characters: document." in written("long")[0]
    )
    assert written("long", question=["question", "document"])[1]["question"] == ["question", "document"]


def test_one_task_is_said_to_be_perhaps_one_of_several_where_there_was_no_time(monkeypatch: pytest.MonkeyPatch):
    assert "one_task: true  # other seeds gave the same start: there is one task\n" in written("same")[0]
    monkeypatch.setattr(listed_tasks, "SECONDS", 0.0)
    assert "or one of several by a name of levels that there was no time to try: what a reset" in written("same")[0]


@pytest.mark.parametrize(
    ("argument", "turns", "tokens"),
    [("code", 2, (384, 256)), ("code", 9, (384, 1024)), ("sql_query", 4, (144, 384)), ("label", 3, (48, 96))],
)
def test_there_is_room_for_what_an_argument_s_name_speaks_of(argument: str, turns: int, tokens: tuple[int, int]):
    tools = [{"name": "act", "input_schema": {"type": "object", "properties": {argument: {"type": "string"}}}}]
    spec = EnvironmentSpec(name="openenv", settings={"actions": "typed", "tools": tools, "served_by": "trap"})
    recipe = yaml.safe_load("\n".join(training_lines(spec, turns, "m", "")))
    assert (recipe["evaluate"]["max_new_tokens"], recipe["grpo"]["max_completion_length"]) == tokens
