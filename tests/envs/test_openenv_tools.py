"""Tools that only a server knows, MCP tools and typed actions, are shown and played as the server tells them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec, environment_class
from apprentice.envs.openenv.observation import hidden, whole
from apprentice.envs.openenv.tools import ListedTool, tool_of, tools_of_action
from apprentice.envs.wire.passing import difference, leaves
from apprentice.envs.wire.reply import Reply
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.audit.audit import Report, audit
from apprentice.flows.audit.play.subject import Needs, Subject
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import completed, with_discovered_settings
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.rollout_modes import by_factory
from tests.envs.discovered import called, playing
from tests.envs.published import echo, mcp_shop, parcels
from tests.envs.published.serving import serving

SHOP = EnvironmentSpec(name="mcp", settings={"reward_range": [0.0, 8.0]})


def checked(server: EnvironmentServer, spec: EnvironmentSpec) -> Report:
    """What a run's preflight finds."""
    return audit(Subject(server, spec, Needs(0, 0, 0)), quick=True)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, EnvironmentServer]]:
    apps = {
        "shop": mcp_shop.app(),
        "careless": mcp_shop.app(mcp_shop.Careless),
        "one question": mcp_shop.app(mcp_shop.OneQuestion),
        "by index": mcp_shop.app(mcp_shop.ByIndex),
        "echo": echo.app(),
    }
    with ExitStack() as stack:
        urls = {name: stack.enter_context(serving(app)) for name, app in apps.items()}
        yield {name: EnvironmentServer(url=url, message_timeout=60) for name, url in urls.items()}


@pytest.fixture
def begin(servers: dict[str, EnvironmentServer]) -> Iterator[Callable[..., Episode]]:
    """Begins an episode in the shop, under settings beside the given ones."""
    with playing(servers["shop"]) as start:
        yield lambda seed=1, **settings: start(SHOP.with_settings(SHOP.settings | settings), seed)


def test_the_tools_are_the_servers_and_with_its_name_and_version_part_of_the_key(
    servers: dict[str, EnvironmentServer],
):
    spec = completed(SHOP, servers["shop"])
    assert [tool["name"] for tool in spec.settings["tools"]] == ["buy", "price", "wait_for_stock"]
    assert spec.settings["served_by"] == "shop 1.2"
    assert spec.in_key() != SHOP.in_key()
    assert str(spec) == "mcp shop 1.2"
    assert EnvironmentSpec.model_validate(spec.model_dump(mode="json")) == spec, "another process needs no server"
    assert completed(spec, EnvironmentServer(url="http://127.0.0.1:9")) == spec, "what is known is not read again"


def test_the_model_is_shown_what_the_server_says_of_its_tools(servers: dict[str, EnvironmentServer]):
    buy, price, _ = (tool["function"] for tool in completed(SHOP, servers["shop"]).make().schemas)
    assert price == {
        "name": "price",
        "description": "What a fruit costs.",
        "parameters": {
            "type": "object",
            "properties": {
                "fruit": {"type": "string", "enum": ["apple", "pear", "plum"], "description": "Its name."},
                "number": {"type": "integer", "default": 1, "description": "How many."},
            },
            "required": ["fruit"],
        },
    }
    assert buy["description"] == "Buy the fruit. Returns: nothing more is sold."
    assert buy["parameters"]["required"] == ["items"]
    assert buy["parameters"]["properties"]["note"] == {"type": "string", "nullable": True, "description": "note"}
    items = buy["parameters"]["properties"]["items"]
    assert items["type"] == "array"
    assert items["items"]["properties"]["number"] == {"type": "integer", "default": 1}
    assert items["items"]["required"] == ["fruit"], "what an object holds is shown as it is"


def test_trl_is_given_the_same_tools(servers: dict[str, EnvironmentServer]):
    instance = completed(SHOP, servers["shop"]).make()
    rollouts: Any = SimpleNamespace(begin=None)
    _, how = by_factory(instance, rollouts)
    assert how["environment_factory"]().schemas == instance.schemas


def test_an_episode_is_played_by_the_servers_tools_and_ends_when_it_says_so(begin: Callable[..., Episode]):
    episode = begin(seed=3)
    wanted = int(episode.question.split()[2])
    assert episode.question == f"Spend exactly {wanted} cents."
    assert episode.question == begin(seed=3).question != begin(seed=5).question
    episode.step(called("price", fruit="apple", number=4))
    assert (episode.messages[-1]["content"], episode.reward, episode.done) == ("8", 1 / 8, False)
    episode.step(called("price", fruit="melon"))
    assert "melon" in episode.messages[-1]["content"]
    assert not episode.done, "a tool's error is the model's to read"
    twos, rest = divmod(wanted, 2)
    items = [{"fruit": "apple", "number": twos - rest}] + [{"fruit": "pear"}] * rest
    episode.step(called("buy", items=items))
    assert (episode.messages[-1]["content"], episode.reward, episode.done) == (f"You paid {wanted}.", 1.0, True)
    assert episode.causes == ["arguments off the schema"]


@pytest.mark.parametrize(("which", "reward"), [("last", 0.0), ("sum", 2 / 8)])
def test_the_last_reward_counts_or_their_sum_and_that_of_a_reset_never(
    begin: Callable[..., Episode], which: str, reward: float
):
    episode = begin(reward=which)
    for _ in range(2):
        episode.step(called("price", fruit="plum"))
    episode.step(called("buy", items=[]))
    assert (episode.reward, episode.done) == (reward, True)


def test_a_reset_sends_the_settings_and_the_question_is_where_they_say(begin: Callable[..., Episode]):
    episode = begin(reset={"rules": "Buy little.", "most": 10}, question=["rules", "question"], max_turns=1)
    assert episode.question == "Buy little.\n\nSpend exactly 10 cents."
    episode.step(called("price", fruit="plum"))
    assert episode.done, "max_turns is reached"


def test_a_server_that_takes_an_index_gets_the_seed_as_one(servers: dict[str, EnvironmentServer]):
    settings = {"question": ["task.prompt.0.content"], "seed_as": "index"}
    spec = completed(EnvironmentSpec(name="mcp", settings=settings), servers["by index"])
    assert checked(servers["by index"], spec).wrong is None
    with pytest.raises(Stop, match=r"texts at task\.prompt\.0\.role, task\.prompt\.0\.content, task\.answer;"):
        completed(EnvironmentSpec(name="mcp", settings={"seed_as": "index"}), servers["by index"])


DEFS = {"Side": {"type": "string", "minLength": 1}, "Tree": {"properties": {"left": {"$ref": "#/$defs/Tree"}}}}


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 1}),
        ({"enum": ["a", "b"], "title": "Kind"}, {"enum": ["a", "b"]}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, {"type": "integer", "nullable": True}),
        ({"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, {"enum": ["a"], "nullable": True}),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ({"$ref": "#/$defs/Side"}, {"type": "string", "minLength": 1}),
        ({"$ref": "#/$defs/Tree"}, {"properties": {"left": {}}}),
        ({"type": "object", "properties": {"title": {"type": "string"}}}, None),
    ],
)
def test_an_argument_is_shown_as_its_schema_without_references_and_titles(
    schema: dict[str, Any], shown: dict[str, Any] | None
):
    whole = {"type": "object", "properties": {"x": schema, "from": {"type": "string"}}, "$defs": DEFS}
    tool = tool_of(ListedTool(name="do-it", input_schema=whole), lambda tool, arguments: str(arguments))
    properties = tool.schema["function"]["parameters"]["properties"]
    assert properties["x"] == {"description": "x"} | (schema if shown is None else shown)
    assert tool.call(**{"from": "here"}) == "{'from': 'here'}", "an argument may have any name"


def test_a_docstring_that_is_sent_as_the_description_is_read_as_one():
    """As FastMCP did before version 4."""
    sent = "Goes.\n\nArgs:\n    x: How far.\n\nReturns:\n    Where it is."
    schema = {"properties": {"x": {"type": "integer"}}, "required": ["x"]}
    shown = tool_of(ListedTool(name="go", description=sent, input_schema=schema), lambda *_: "").schema["function"]
    assert shown["description"] == "Goes. Returns where it is."
    assert shown["parameters"]["properties"] == {"x": {"type": "integer", "description": "How far."}}


UNION = {
    "oneOf": [{"$ref": "#/$defs/MoveAction"}, {"$ref": "#/$defs/Pass"}],
    "$defs": {
        "MoveAction": {
            "title": "MoveAction",
            "type": "object",
            "properties": {"kind": {"const": "move"}, "to": {"$ref": "#/$defs/Square"}, "metadata": {"type": "object"}},
            "required": ["kind", "to"],
        },
        "Pass": {"title": "PassTurn", "type": "object", "properties": {"metadata": {"type": "object"}}},
        "Square": {"type": "object", "properties": {"row": {"type": "integer"}, "name": {"enum": ["a", "b"]}}},
    },
}


def test_an_action_that_is_one_of_several_is_one_tool_for_each():
    move, pass_turn = tools_of_action(UNION)
    assert (move.name, move.fixed) == ("move", {"kind": "move"})
    assert move.input_schema["properties"] == {
        "to": {"type": "object", "properties": {"row": {"type": "integer"}, "name": {"enum": ["a", "b"]}}}
    }
    assert (pass_turn.name, pass_turn.fixed, pass_turn.input_schema["properties"]) == ("pass_turn", {}, {})


def test_a_tool_that_timed_out_is_no_reward(begin: Callable[..., Episode]):
    episode = begin()
    episode.step(called("wait_for_stock"))
    assert episode.reward is None
    assert "the tool wait_for_stock failed" in episode.broken


def test_a_server_that_has_other_tools_by_now_is_played_no_further(begin: Callable[..., Episode]):
    tool = {"name": "price", "description": "", "input_schema": {}}
    with pytest.raises(Exception, match=r"the server's tools \(buy, price, wait_for_stock\) are not those in"):
        begin(tools=[tool])


@pytest.mark.parametrize(
    ("served", "settings", "words"),
    [
        ("shop", {"reset": {"rules": "Two texts."}}, "texts at question, rules; environment.settings.question says"),
        ("shop", {"question": ["metadata.question"]}, "the reply has no metadata.question"),
        ("echo", {}, "neither the observation of a reset nor the session's state holds a text"),
    ],
)
def test_a_server_that_cannot_be_played_is_refused_with_what_to_set(
    servers: dict[str, EnvironmentServer], served: str, settings: dict[str, Any], words: str
):
    with pytest.raises(Stop, match=words):
        completed(SHOP.with_settings(settings), servers[served])


def test_a_recipe_has_the_tools_in_all_that_it_plays_before_a_run_begins(servers: dict[str, EnvironmentServer]):
    hard = SHOP.settings | {"reset": {"most": 20}}
    recipe = Recipe.model_validate(
        {
            "name": "shop",
            "environment": SHOP.in_key(),
            "server": servers["shop"].model_dump(),
            "windows": {purpose: {"size": 8} for purpose in ("collect", "grpo", "evaluate")},
            "student": {"build": {}},
            "teacher": {"model": "any"},
            "probe": {"questions": 8},
            "grpo": {"auto_difficulty": [SHOP.settings, hard]},
            "improve": {"ladder": [hard]},
            "guards": [{"name": "say", "environment": {"name": "echo"}}],
        }
    )
    with_tools = with_discovered_settings(recipe)
    whole = completed(SHOP, servers["shop"])
    assert with_tools.environment == whole
    assert with_tools.level_environments() == [whole, whole.with_settings(whole.settings | hard)]
    assert with_tools.improve.ladder == [whole.settings | hard]
    assert with_tools.guards == recipe.guards, "what knows its tools is asked nothing, and no server starts for it"


def test_without_a_server_it_says_to_name_one():
    with pytest.raises(Stop, match=r"mcp has no server here: set server\.url"):
        completed(SHOP, EnvironmentServer())


@pytest.mark.parametrize(
    ("served", "words"),
    [
        ("careless", "the same seed gave two different questions: each reset draws"),
        ("one question", "5 seeds gave the same question"),
    ],
)
def test_a_server_that_ignores_seeds_is_found_before_a_run(
    servers: dict[str, EnvironmentServer], served: str, words: str
):
    spec = completed(SHOP, servers[served])
    wrong = checked(servers[served], spec).wrong
    assert wrong is not None
    assert wrong.check.partition(".")[0] == "seeds"
    assert wrong.found.startswith(words)
    assert ("one_task: true" if served == "one question" else "list them: environment.tasks") in wrong.remedy
    assert checked(servers["shop"], completed(SHOP, servers["shop"])).wrong is None


@pytest.mark.parametrize(("number_rows", "question"), [(False, "Guess."), (True, "Guess.\n\n(Row 7)")])
def test_rows_that_share_one_prompt_are_told_apart_by_their_number(number_rows: bool, question: str):
    """As the games of the verifiers package: equal questions would be taken for one."""
    environment = environment_class("verifiers")
    settings = {"package": "wordle", "number_rows": number_rows}
    playing_it: Any = environment(environment.Settings.model_validate(settings))
    playing_it._asked(7)
    assert playing_it._question_in(Reply({"question": "Guess."}, None, False)) == question


def test_a_member_of_a_union_within_an_action_requires_what_tells_it_apart():
    (tool,) = tools_of_action(parcels.Handle.model_json_schema())
    move, stick = tool.input_schema["properties"]["deed"]["oneOf"]
    assert (move["required"], stick["required"]) == (["kind", "shelf"], ["kind", "color"])


def test_an_observation_is_shown_without_pictures_and_long_arrays():
    seen = parcels.Parcels().reset(seed=1).model_dump()
    assert whole(seen, ["sent_at"]) == 'text: Parcel 2202 belongs on shelf 1.\ncamera: {"lens": 2202}'
    assert hidden(seen) == ["camera.depth", "photo"]
    board = {"board": [[0.5] * 8] * 8, "dna": "GATTACA" * 90}
    assert hidden(board) == []
    assert whole(board).count("GATTACA") == 90


def test_a_picture_is_compared_as_a_whole():
    picture = [[[0, 128, 255]] * 400 for _ in range(300)]
    assert [path for path, _ in leaves({"picture": picture, "board": [[1, 2]]})] == [
        "picture",
        "board.0.0",
        "board.0.1",
    ]
    then = Reply({"picture": picture}, None, False)
    assert difference(then, Reply({"picture": [*picture[1:], []]}, None, False)).startswith(
        "picture is [[[0, 128, 255]"
    )
    assert hidden({"picture": picture}) == ["picture"]
