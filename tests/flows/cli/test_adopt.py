"""A recipe is written for a server that somebody else published, or it says why it cannot be trained on."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import yaml

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.adoption import random_calls
from apprentice.flows.cli.adopt import adopt
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.reporting.errors import Stop
from tests.envs.published import echo, mcp_desk, oddities, parcels, web_pages
from tests.envs.published.parity import app, over_http, parity
from tests.envs.published.serving import serving

LONG = pytest.mark.long


def with_tasks(start: Any) -> Any:
    """A server that lists tasks, which its resets may or may not know."""
    served = app(parity(start))
    served.add_api_route("/tasks", lambda: {"tasks": [{"id": "easy"}, {"id": "medium"}, {"id": "hard"}]})
    return served


LEVELS = ("easy", "medium", "hard")
ALIASED = {"tasks": [{"difficulty": each} for each in ("gentle", "medium", "hard")]}
BY_LEVEL = {"tasks": [{"difficulty": each} for each in LEVELS]}
APPS: dict[str, Callable[[], Any]] = {
    "lists tasks": lambda: with_tasks("by name"),
    "lists others": lambda: with_tasks("fixed"),
    "seeded": lambda: app(parity()),
    "fixed": lambda: app(parity("fixed"), sessions=1),
    "random": lambda: app(parity("random")),
    "first of a session": lambda: app(parity("first of a session")),
    "hidden": lambda: app(parity("hidden")),
    "without rewards": lambda: app(parity("fixed", rewards=False)),
    "over http": over_http,
    "echo": echo.app,
    "other tasks": web_pages.app,
    "an answer ends it": mcp_desk.app,
    "an answer is replied to": lambda: mcp_desk.app(ends=False),
    "an action ends it": lambda: mcp_desk.app(called="run"),
    "parcels": parcels.app,
    "parcels by level": lambda: parcels.app(parcels.ByLevel),
    "few parcels": lambda: parcels.app(parcels.Few),
    "strict parcels": lambda: parcels.app(parcels.Strict),
    "ungraded parcels": lambda: parcels.app(parcels.Ungraded),
    "moody parcels": lambda: parcels.app(parcels.Moody),
    "shared parcels": lambda: parcels.app(shared=True),
    "shared in silence": oddities.shared,
    "timed": lambda: oddities.served(oddities.Timed),
    "secret": lambda: oddities.served(oddities.Secret, oddities.Guess),
    "told in the state": lambda: oddities.served(oddities.Told),
    "fifty rows": lambda: oddities.served(oddities.Rows),
    "holes": lambda: oddities.served(oddities.Holes),
    "line": lambda: oddities.served(oddities.Line, oddities.Step),
    "keyless": lambda: oddities.served(oddities.Keyless),
    "closing": oddities.closing,
    "broken": lambda: oddities.served(oddities.Broken),
    "unbegun": lambda: oddities.served(oddities.Unbegun),
    "lists levels": lambda: oddities.listing(
        {"tasks": [{"difficulty": each, "goal": f"an {each} one"} for each in LEVELS], "action_schema": {}}
    ),
    "lists levels by other names": lambda: oddities.listing(
        {"tasks": [{"task_id": each, "name": f"The {each} one"} for each in (*LEVELS, "gentle", "gone")]}
    ),
    "lists an alias first": lambda: oddities.listing({"tasks": ["gone", "gentle", "easy", "medium", "hard"]}),
    "lists odd rows": lambda: oddities.listing({"tasks": [None, "easy", 3.5, "medium", "hard", "x" * 99]}),
    "lists a number": lambda: oddities.listing({"tasks": 3}),
    "other levels": lambda: oddities.served(oddities.OtherLevels),
    "repeating": lambda: oddities.served(oddities.Repeating),
    "few of a level": lambda: oddities.listing(list(LEVELS), oddities.FewOfALevel),
    "dispatching": lambda: oddities.served(oddities.Dispatching),
    "undescribed": oddities.undescribed,
    "own fields": lambda: oddities.served(oddities.OwnFields, oddities.OwnCall),
    "coin": lambda: oddities.served(oddities.Coin),
    "late": lambda: oddities.served(oddities.Late),
    "counting": lambda: oddities.served(oddities.Counting),
    "ending": lambda: oddities.served(oddities.Ending),
    "in turn": lambda: oddities.served(oddities.InTurn),
    "levels": lambda: oddities.served(oddities.Levels),
    "lists seeded levels": lambda: oddities.listing({"tasks": list(LEVELS)}, oddities.SeededLevels),
    "lists levels by name": lambda: oddities.listing({each: {"max_steps": 3} for each in LEVELS}),
}


@pytest.fixture(scope="module")
def written() -> Iterator[Callable[[str], tuple[str, dict[str, Any]]]]:
    """Adopts a server: the recipe's text, and what it holds."""
    with ExitStack() as stack:

        def write(name: str, **given: Any) -> tuple[str, dict[str, Any]]:
            url = stack.enter_context(serving(APPS[name]()))
            text = adopt(EnvironmentServer(url=url, message_timeout=60), url, "gpt-5-mini", given=given)
            return text, yaml.safe_load(text)

        yield write


@pytest.mark.parametrize(
    ("server", "environment", "sessions"),
    [
        ("seeded", {"max_turns": 2}, 16),
        ("fixed", {"max_turns": 2, "one_task": True}, 2),
        pytest.param("first of a session", {"new_sessions": True, "one_task": True}, 16, marks=LONG),
        pytest.param("late", {"max_turns": 30}, 16, marks=LONG),
        pytest.param("counting", {"new_sessions": True}, 16, marks=LONG),
        ("lists tasks", {"tasks": [{"task_id": "easy"}, {"task_id": "medium"}, {"task_id": "hard"}]}, 16),
        ("lists levels by other names", BY_LEVEL, 16),
        pytest.param("lists levels", BY_LEVEL, 16, marks=LONG),
        pytest.param("levels", BY_LEVEL, 16, marks=LONG),
        pytest.param(
            "lists an alias first",
            {"tasks": [{"difficulty": each} for each in ("gentle", "medium", "hard")]},
            16,
            marks=LONG,
        ),
        pytest.param("lists odd rows", BY_LEVEL, 16, marks=LONG),
        pytest.param("lists a number", BY_LEVEL, 16, marks=LONG),
        pytest.param("other levels", {"tasks": [{"difficulty": "easy"}, {"difficulty": "medium"}]}, 16, marks=LONG),
        pytest.param("repeating", {"one_task": True}, 16, marks=LONG),
        pytest.param("dispatching", {}, 16, marks=LONG),
        pytest.param("ending", {"new_sessions": True, "one_task": True}, 16, marks=LONG),
        pytest.param("in turn", {"rotation": 3}, 16, marks=LONG),
        pytest.param("lists seeded levels", BY_LEVEL | {"seeded_tasks": True}, 16, marks=LONG),
        pytest.param("lists levels by name", BY_LEVEL, 16, marks=LONG),
        pytest.param("lists others", {"one_task": True}, 16, marks=LONG),
        pytest.param("parcels", {"max_turns": 2}, 16, marks=LONG),
        pytest.param(
            "parcels by level", {"tasks": [{"level": "near"}, {"level": "far"}, {"level": "top"}]}, 16, marks=LONG
        ),
        pytest.param(
            "few parcels", {"tasks": [{"seed": 0}, {"seed": 1}, {"seed": 2}, {"seed": 3}, {"seed": 4}]}, 16, marks=LONG
        ),
        pytest.param("strict parcels", {"max_turns": 10, "one_task": True}, 16, marks=LONG),
        pytest.param("timed", {"max_turns": 2}, 16, marks=LONG),
        pytest.param("secret", {"tasks": 100}, 16, marks=LONG),
        pytest.param("told in the state", {"question": ["state.current_question"]}, 16, marks=LONG),
        pytest.param("fifty rows", {"tasks": 50}, 16, marks=LONG),
        pytest.param("echo", {"name": "echo"}, 8, marks=LONG),
        pytest.param("other tasks", {}, 16, marks=LONG),  # not this project's browsergym, whose name it has
    ],
)
def test_a_recipe_of_twenty_lines_at_most_has_what_was_found(
    written: Any, server: str, environment: dict[str, Any], sessions: int
):
    text, recipe = written(server)
    assert len(text.splitlines()) <= 20
    assert environment.items() <= recipe["environment"].items()
    assert recipe["server"]["sessions"] == sessions
    assert Recipe.model_validate(recipe).environment.name == environment.get("name", "openenv")


@LONG
@pytest.mark.parametrize(
    ("server", "given", "environment"),
    [
        ("in turn", {"one_task": True}, {"one_task": True, "new_sessions": True}),
        ("in turn", {"rotation": 2}, {"rotation": 2}),
        ("levels", {"max_turns": 2}, BY_LEVEL | {"max_turns": 2}),
        ("levels", {"reset": {"difficulty": "hard"}}, {"one_task": True}),
    ],
)
def test_what_is_found_agrees_with_what_was_said(
    written: Any, server: str, given: dict[str, Any], environment: dict[str, Any]
):
    _, recipe = written(server, **given)
    assert environment.items() <= recipe["environment"].items()
    assert Recipe.model_validate(recipe)


@LONG
def test_few_starts_of_each_task_are_tasks_of_their_own(written: Any):
    _, recipe = written("few of a level")
    tasks = recipe["environment"]["tasks"]
    assert len(tasks) == 12
    assert all(task.keys() == {"difficulty", "seed"} for task in tasks)
    assert "seeded_tasks" not in recipe["environment"]
    assert Recipe.model_validate(recipe).environment.questions == 12


def test_behind_each_line_stands_why_it_is_there(written: Any):
    text, recipe = written("fixed")
    assert "one_task: true  # other seeds gave the same start: there is one task" in text
    assert "# it grants 1 of 16; max_concurrent_envs of create_app raises that" in text
    assert recipe["environment"]["instructions"] == (
        "You play Parity. Act by calling `act` (Say which it is), once in each turn, until the task is solved."
    )


def test_a_picture_is_no_part_of_a_question_and_the_recipe_says_so(written: Any):
    text, recipe = written("parcels")
    assert "Random calls earned 0 to 1. Not shown, as it is no text: camera.depth, photo." in text
    assert recipe["environment"]["instructions"] == (
        "You play Parcels. Act by calling `act` (Handle a parcel), once in each turn, until the task is solved."
    )


def test_where_the_player_says_when_an_episode_ends_there_are_turns_for_more(written: Any):
    _, recipe = written("line")
    assert recipe["environment"]["max_turns"] >= random_calls.AT_LEAST


def test_tasks_that_the_server_lists_under_another_name_are_pointed_out(written: Any):
    text, _ = written("lists others")
    assert "there is one task, or one of those at /tasks: what a reset calls it, you know (--set tasks=" in text


def test_a_reset_that_fails_on_what_was_said_is_not_told_to_need_more(written: Any):
    with pytest.raises(Stop, match="its reset fails with what you said of tasks") as failed:
        written("parcels by level", tasks=[{"level": "nowhere"}])
    assert "Correct it" in str(failed.value.remedy)


@pytest.mark.parametrize(
    ("server", "say"),
    [
        ("an answer ends it", {"tool": "respond", "argument": "message"}),
        pytest.param("an answer is replied to", None, marks=LONG),
        pytest.param("an action ends it", None, marks=LONG),
    ],
)
def test_a_tool_that_answers_the_user_and_ends_the_episode_is_what_a_last_text_is_sent_as(
    written: Any, server: str, say: dict[str, str] | None
):
    text, recipe = written(server)
    assert recipe["environment"].get("say") == say
    assert recipe["environment"]["instructions"].endswith("Then answer without a call.") == (say is not None)
    assert Recipe.model_validate(recipe).environment.make().takes_text == (say is not None)
    assert ("# it ended each episode that called it" in text) == (say is not None)


@LONG
def test_an_episode_that_takes_too_long_is_left(written: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(random_calls, "MOST_SECONDS", 0.0)
    text, recipe = written("parcels")
    assert "random calls ended none" in text
    assert recipe["environment"]["max_turns"] == random_calls.LONGEST // 2


@LONG
def test_a_grading_tool_that_the_server_does_not_list_can_be_named(written: Any):
    say = {"tool": "grade", "argument": "answer", "unlisted": True}
    text, recipe = written("own fields", say=say)
    assert recipe["environment"]["say"] == say
    assert Recipe.model_validate(recipe).environment.make().takes_text
    assert "# as you said" in text


def test_what_its_user_knows_comes_first(written: Any):
    text, recipe = written("fixed", tasks=[{"task_id": "easy"}], max_turns=5)
    assert recipe["environment"] | {"instructions": ""} == {
        "instructions": "",
        "tasks": [{"task_id": "easy"}],
        "max_turns": 5,
    }
    assert "max_turns: 5  # as you said" in text


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ("random", "the same seed gave two different starts"),
        pytest.param("hidden", r"the same seed gave two different starts \(state.secret is 'number", marks=LONG),
        ("without rewards", "20 calls of all its tools had no reward"),
        ("over http", "it has no WebSocket at /ws"),
        ("ungraded parcels", "the episode ended without a reward"),
        pytest.param(
            "moody parcels",
            "the same calls did not lead to the same episode: its replies are drawn at random",
            marks=LONG,
        ),
        ("shared parcels", r"all its sessions play one episode \(state.step_count of one changed"),
        (
            "shared in silence",
            r"all its sessions play one episode \(beside another session an answer earns \d.0, alone \d.0\)",
        ),
        pytest.param("holes", "its reset fails under seed 5, and not under seed 6", marks=LONG),
        pytest.param(
            "keyless",
            r"it makes no environment: Environment factory 'Keyless' failed to create instance\.\n",
            marks=LONG,
        ),
        ("broken", r"every step fails in its own code .*'Broken' object has no attribute 'answer'"),
        pytest.param(
            "unbegun", r"its reset fails in its own code .*'Unbegun' object has no attribute 'question'", marks=LONG
        ),
        pytest.param("undescribed", "its /schema fails in its own code", marks=LONG),
        pytest.param("closing", r"its WebSocket at /ws closes at the first message \(1008 token missing\)", marks=LONG),
    ],
)
def test_what_cannot_be_trained_on_is_refused_with_the_reason(written: Any, server: str, why: str):
    with pytest.raises(Stop, match=why):
        written(server)


@LONG
@pytest.mark.parametrize("drawn", range(5))
def test_a_start_that_is_drawn_from_two_is_seen_whatever_was_drawn(
    written: Any, monkeypatch: pytest.MonkeyPatch, drawn: int
):
    monkeypatch.setattr(oddities.Coin, "drawn", random.Random(drawn))
    with pytest.raises(Stop, match="the same seed gave two different starts"):
        written("coin")
