"""An environment of MCP tools on somebody else's server is played, with tools as the server tells them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from openenv.core.env_server.mcp_types import Tool as ServersTool

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.mcp.tools import ListedTool, functions_of
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.audit.audit import Report, audit
from apprentice.flows.audit.subject import Needs, Subject
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import completed, with_discovered_settings
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.rollouts import by_factory
from tests.envs.discovered import called, playing
from tests.envs.published import echo, mcp_shop
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
                "number": {
                    "type": "integer",
                    "description": 'How many. (JSON schema: {"default": 1, "type": "integer"})',
                },
            },
            "required": ["fruit"],
        },
    }
    assert buy["description"] == "Buy the fruit. Returns : nothing more is sold."
    assert buy["parameters"]["required"] == ["items"]
    assert buy["parameters"]["properties"]["note"] == {"type": "string", "nullable": True, "description": "note"}
    items = buy["parameters"]["properties"]["items"]
    assert (items["type"], items["items"]) == ("array", {"type": "object"})
    assert '"number": {"default": 1' in items["description"], "the fields of an object stand in the description"


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
        ("echo", {}, r"the reply to a reset holds (no text|texts? at metadata)"),
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
    with pytest.raises(Stop, match=r"mcp has no server here: set server\.url or server\.image"):
        completed(SHOP, EnvironmentServer())


@pytest.mark.parametrize(
    ("served", "words"),
    [("careless", "the same seed gave two different questions"), ("one question", "5 seeds gave the same question")],
)
def test_a_server_that_ignores_seeds_is_found_before_a_run(
    servers: dict[str, EnvironmentServer], served: str, words: str
):
    spec = completed(SHOP, servers[served])
    wrong = checked(servers[served], spec).wrong
    assert wrong is not None
    assert (wrong.check.partition(".")[0], wrong.found) == ("seeds", words)
    assert "a server that ignores seeds cannot be used" in wrong.remedy
    assert checked(servers["shop"], completed(SHOP, servers["shop"])).wrong is None


SCHEMAS: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"type": "number"}, {"type": "number"}),
    ({"enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}),
    ({"type": ["integer", "string"]}, {"type": ["integer", "string"]}),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, {"type": "integer", "nullable": True}),
    ({"type": "object", "additionalProperties": {"type": "number"}}, None),
    ({"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}, None),
    ({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}, None),
    ({}, {}),
]


@pytest.mark.parametrize(("schema", "shown"), SCHEMAS)
def test_a_schema_that_type_hints_can_say_is_shown_as_it_is(schema: dict[str, Any], shown: dict[str, Any] | None):
    assert argument(schema | {"description": "What."}) == (shown if shown is not None else schema) | {
        "description": "What."
    }


@pytest.mark.parametrize(
    ("schema", "description"),
    [
        ({"type": "integer", "minimum": 1}, 'x (JSON schema: {"minimum": 1, "type": "integer"})'),
        ({"type": "string", "description": "One.\n\nArgs:\n  y: z"}, "One. Args : y: z"),
        ({"type": "string", "description": "A drink (choices: tea, coffee)"}, "A drink (choices: tea, coffee)."),
        ({"$ref": "#/$defs/Side"}, 'x (JSON schema: {"minLength": 1, "type": "string"})'),
    ],
)
def test_what_type_hints_cannot_say_stands_in_the_description(schema: dict[str, Any], description: str):
    assert argument(schema)["description"] == description


def test_a_docstring_that_is_sent_as_the_description_is_read_as_one():
    """As FastMCP did before version 4."""
    from transformers.utils.chat_template_utils import get_json_schema

    sent = "Goes.\n\nArgs:\n    x: How far.\n\nReturns:\n    Where it is."
    schema = {"properties": {"x": {"type": "integer"}}, "required": ["x"]}
    tool = ListedTool(name="go", description=sent, input_schema=schema)
    shown = get_json_schema(*functions_of([tool], lambda self, name, arguments: ""))["function"]
    assert (shown["description"], shown["return"]["description"]) == ("Goes.", "Where it is.")
    assert shown["parameters"]["properties"] == {"x": {"type": "integer", "description": "How far."}}


def argument(schema: dict[str, Any]) -> dict[str, Any]:
    """How the argument x of a tool is shown."""
    from transformers.utils.chat_template_utils import get_json_schema

    defs = {"Side": {"type": "string", "minLength": 1}}
    whole = {"type": "object", "properties": {"x": schema, "y": {"type": "string"}}, "$defs": defs}
    listed = ServersTool(name="do-it", description="", input_schema=whole)
    (method,) = functions_of([ListedTool(**listed.model_dump())], lambda self, name, arguments: "")
    return get_json_schema(method)["function"]["parameters"]["properties"]["x"]


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"name": "reset"}, "a tool cannot be called 'reset'"),
        ({"name": "get_reward"}, "a tool cannot be called 'get_reward'"),
        ({"name": "go", "input_schema": {"properties": {"from": {}}}}, "an argument of the tool go is called 'from'"),
    ],
)
def test_a_name_that_no_method_can_have_is_refused(tool: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        functions_of([ListedTool(**tool)], lambda self, name, arguments: "")
