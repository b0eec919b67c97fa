"""`apprentice env list | serve | check | play`, as a person at a terminal meets them."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.catalog import ADAPTERS, CATALOGUE
from apprentice.envs.echo.env import Environment
from apprentice.envs.echo.text import text_of
from apprentice.envs.player import Player
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.flows.audit.connection import known_as
from apprentice.flows.audit.play.subject import Needs
from apprentice.flows.cli.app import app
from apprentice.flows.cli.choice import IMAGE, sessions_for
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.serving.play_by_hand import play
from apprentice.tasks.reporting.errors import Stop
from tests.flows.commands import hears_ctrl_c
from tests.odd_server import odd_server

RECIPES = Path(__file__).parents[3] / "deployments" / "recipes"
TOY = RECIPES / "toy.yaml"
COMMAND = [sys.executable, "-c", "from apprentice.flows.cli.app import app; app()", "env"]


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    """An echo server with room for five."""
    with local_server("apprentice.envs.serving.serve", "echo", "--max-sessions", "5") as url:
        yield url


@pytest.fixture
def echo_recipe(tmp_path: Path) -> Path:
    """A recipe in echo that needs few sessions."""
    recipe = tmp_path / "words.yaml"
    given = yaml.safe_load(TOY.read_text()) | {"environment": {"name": "echo", "settings": {"words": 2}}}
    given["server"] = {"sessions": 2}
    given["grpo"] |= {"batch_size": 4, "gradient_accumulation": 1, "num_generations": 4}
    given["evaluate"] |= {"batch_size": 3}
    given["guards"] = []
    recipe.write_text(yaml.safe_dump(given))
    return recipe


class Said(BaseModel):
    """What a command said, and how it ended."""

    code: int
    text: str

    def json_line(self) -> dict[str, Any]:
        return json.loads(self.text.splitlines()[-1])


def env(*arguments: str, typed: str = "") -> Said:
    ran = CliRunner().invoke(app, ["env", *arguments], input=typed, env={"COLUMNS": "300"})
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return Said(code=ran.exit_code, text=ran.output)


def test_the_list_names_every_environment_with_tools_turns_rewards_extras_and_recipes():
    said = env("list", "--json")
    listed = {each["name"]: each for each in said.json_line()["envs"]}
    ours = [*CATALOGUE, *ADAPTERS]
    assert list(listed)[: len(ours)] == ours, "first; those that this process knows by a path stand behind them"
    assert listed["echo"]["tools"] == ["echo"]
    assert (listed["echo"]["turns"], listed["echo"]["streams"]) == (1, {"environment_reward": 1.0})
    assert (listed["echo"]["extras"], listed["echo"]["installed"]) == ([], True)
    gym = listed["reasoning_gym"]
    assert gym["tools"] == ["answer"]
    assert gym["laptop"] == "laptop"
    assert gym["recipe"] in gym["recipes"]
    assert all((RECIPES / f"{name}.yaml").is_file() for name in gym["recipes"])


def test_the_list_says_which_extra_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Environment, "extra", ("textarena", "a_module_that_is_nowhere"))
    said = env("list", "--json")
    listed = next(each for each in said.json_line()["envs"] if each["name"] == "echo")
    assert (listed["extras"], listed["installed"]) == (["textarena"], False)
    assert "textarena (not installed)" in said.text


@pytest.mark.parametrize(
    "command", [["serve", "eco"], ["play", "eco"], ["check", "http://there", "--environment", "eco"]]
)
def test_an_unknown_environment_is_told_with_the_nearest_name(command: list[str]):
    said = env(*command)
    assert said.code == 1
    assert "unknown environment 'eco'; did you mean 'echo'?" in said.text


@pytest.mark.long
def test_an_environment_is_served_until_ctrl_c():
    with subprocess.Popen(
        [*COMMAND, "serve", "echo", "--port", "0", "--max-sessions", "3"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=hears_ctrl_c,
    ) as serving:
        assert serving.stdout is not None
        url = re.search(r"http://127\.0\.0\.1:\d+", serving.stdout.readline())
        assert url is not None
        taken = url[0].rpartition(":")[2]
        said = env("check", url[0], "--json")
        other = env("serve", "echo", "--port", taken)
        serving.send_signal(signal.SIGINT)
        rest = serving.stdout.read()
        assert serving.wait() == 0
    assert (said.code, said.json_line()["granted"]) == (0, 3)
    assert (other.code, f"Port {taken} is not available" in other.text) == (1, True)
    assert "Stopped." in rest
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url[0]}/health")


def test_what_cannot_be_served_for_want_of_an_extra_names_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Environment, "extra", ("textarena", "a_module_that_is_nowhere"))
    for command in (["serve", "echo", "--port", "0"], ["play", "echo"]):
        said = env(*command)
        assert said.code == 1
        assert "pip install 'openenv-apprentice[textarena]'" in said.text


def test_a_server_with_all_that_a_recipe_needs_passes(echo: str, echo_recipe: Path):
    said = env("check", echo, "--recipe", str(echo_recipe), "--json")
    assert said.code == 0, said.text
    report = said.json_line()
    assert report["ok"]
    assert report["needed"] == {"train": 4, "evaluate": 3, "collect": 2}
    quick = ("health", "sessions", "code.class", "schema.tools", "wire", "code.traits", "seeds.repeat")
    quick += ("seeds.ignored", "reward.range", "latency")
    assert {each["check"]: each["status"] for each in report["findings"]} == dict.fromkeys(quick, "passed")
    assert min(report["latency_ms"]["reset"], report["latency_ms"]["step"]) > 0
    assert said.text.splitlines()[-2] == f"{echo} works for echo."


def test_a_server_with_too_few_sessions_for_grpo_is_told_that_rollouts_take_turns(echo: str, echo_recipe: Path):
    said = env("check", echo, "--recipe", str(echo_recipe), "--set", "grpo.batch_size=8", "--json")
    assert said.code == 0
    report = said.json_line()
    assert (report["granted"], report["needed"]["train"]) == (5, 8)
    assert "the 8 rollouts of a step take turns" in report["findings"][1]["found"]
    assert "create_app(…, max_concurrent_envs=8)" in report["findings"][1]["remedy"]
    assert f"{echo} works for echo, with too few sessions." in said.text


def test_a_server_with_too_few_sessions_for_the_rest_is_told_to_be_slower(echo: str):
    said = env("check", echo)
    assert said.code == 0, "which environment it serves was asked of the server itself"
    assert "it grants 5; collection uses 64" in said.text
    assert "works for echo, with too few sessions." in said.text


def test_grpo_needs_a_session_for_each_rollout_of_every_process():
    recipe = load_recipe(TOY, ["grpo.processes=2"])
    spec: Any = recipe.grpo
    assert Needs.of(recipe).train >= spec.batch_size * spec.gradient_accumulation * 2


def test_what_is_served_here_has_the_sessions_that_the_recipe_needs(echo_recipe: Path):
    assert sessions_for(echo_recipe, None, quick=False) == 4
    assert sessions_for(echo_recipe, ["server.sessions=70"], quick=True) == 70


def test_another_environments_server_fails_and_is_named(echo: str):
    said = env("check", echo, "--environment", "reasoning_gym")
    assert said.code == 1
    assert "its replies are not those of reasoning_gym (no question under seed 0, twice: the reply has no" in said.text
    assert "its name is EchoEnvironment" in said.text
    assert "It serves another environment: --environment echo" in said.text


def test_a_server_that_refuses_the_reset_fails_with_its_words(server: Any):
    said = env("check", server.url, "--environment", "echo")
    assert said.code == 1
    assert "it refuses a reset or a step: a reset names its question whole" in said.text
    assert "--environment reasoning_gym" in said.text


@pytest.mark.parametrize(
    ("kind", "what", "says"),
    [
        ("forgetful", "seeds.repeat", "the same seed gave two different questions"),
        ("stubborn", "seeds.ignored", "5 seeds gave the same question"),
        ("counting", "seeds.repeat", "the same seed gave two different questions"),
        ("generous", "reward.range", "reward is 7.0, which is not within 0 to 1"),
        ("page", "health", "/health is not that of an OpenEnv server (status 200)"),
        ("asleep", "health", "it answers 503: asleep, starting or failing"),
        ("deaf", "health", "it has no WebSocket at /ws (status 403)"),
    ],
)
def test_what_is_not_right_is_named_with_a_fix(kind: str, what: str, says: str):
    with odd_server(kind) as url:
        said = env("check", url, "--environment", "echo", "--json")
    assert said.code == 1
    wrong = [each for each in said.json_line()["findings"] if each["status"] == "failed"]
    assert [each["check"] for each in wrong] == [what]
    assert says in said.text
    assert wrong[0]["remedy"]
    assert wrong[0]["effect"]


def test_an_audit_shows_evidence_effect_and_remedy_and_stops_where_nothing_can_be_judged():
    with odd_server("generous") as url:
        said = env("audit", url, "--environment", "echo", "--json")
    assert said.code == 1
    findings = {each["check"]: each for each in said.json_line()["findings"]}
    assert findings["reward.range"]["evidence"][0]["seed"] == 0
    assert "reward.range: An episode has no reward" in said.text
    assert """seed 0: echo({"message": """ in said.text
    assert findings["reward.exploit"]["found"] == "it cannot be judged where reward.range failed"


@pytest.mark.parametrize(
    ("metadata", "name"),
    [("EchoEnvironment", "echo"), ("NumberServer", "number"), ("reasoning-gym-env", "reasoning_gym"), ("Other", None)],
)
def test_a_servers_own_name_is_that_of_an_environment(metadata: str, name: str | None):
    assert known_as(metadata) == name


@pytest.mark.parametrize(
    ("place", "image"),
    [
        ("owner/name:1", True),
        ("ghcr.io/owner/name@sha256:0af", True),
        ("name:latest", True),
        ("localhost:8000", False),
        ("http://host:8000", False),
        ("envs/echo", False),
        ("echo", False),
    ],
)
def test_an_image_is_told_from_a_url_a_folder_and_a_name(place: str, image: bool):
    assert bool(IMAGE.fullmatch(place)) == image


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:9", "it does not answer (ConnectError"),
        ("127.0.0.1:9", "is not the URL of a server"),
        ("https://huggingface.co/spaces/Owner/My_Game", "Use the server's URL: https://owner-my-game.hf.space"),
    ],
)
def test_an_address_where_no_server_is_fails_with_what_to_do(url: str, says: str):
    said = env("check", url)
    assert said.code == 1
    assert says in said.text


def test_a_recipe_for_a_model_of_the_hub_is_checked_without_its_revision(echo: str):
    said = env("check", echo, "--recipe", str(RECIPES / "chain-sum-qwen3-1.7b.yaml"))
    assert "does not work for reasoning_gym chain_sum" in said.text


@pytest.mark.long
def test_a_person_plays_a_seeded_episode():
    said = env("play", "echo", "--seed", "3", "--set", "words=2", typed=f"{text_of(3, 2)}\n")
    assert said.code == 0
    assert text_of(3, 2) in said.text
    assert "by calling the tool `echo`" in said.text
    assert f"Reward 1.00 of 1. The environment's own answer: {text_of(3, 2)}" in said.text


def test_a_person_plays_on_a_server_that_runs(echo: str, echo_recipe: Path):
    said = env("play", "echo", "--seed", "5", "--url", echo, "--recipe", str(echo_recipe), typed=f"{text_of(5, 2)}\n")
    assert "Reward 1.00 of 1." in said.text


def test_an_episode_that_nobody_named_can_be_played_again_by_its_seed(echo: str):
    said = env("play", "echo", "--url", echo, typed="nothing\n")
    seed = re.search(r"Seed (\d+)\.", said.text)
    assert seed is not None
    assert text_of(int(seed[1]), 3) in said.text


def test_settings_without_a_default_are_those_of_a_recipe(server: Any):
    said = env("play", "reasoning_gym", "--seed", "1", "--url", server.url, typed="0\n")
    assert "Using the settings of the recipe laptop." in said.text
    assert "Reward" in said.text


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--set", "words=many"], "words: Input should be a valid integer"),
        (["--set", "wordz=2"], "wordz: unknown field; did you mean words?"),
        (["--set", "words"], "is not of the form path=value"),
        (["--recipe", str(TOY)], "trains in reasoning_gym, not in echo"),
        (["--recipe", str(RECIPES / "nowhere.yaml")], "There is no recipe at"),
        (["--url", "nowhere"], "is not the URL of a server"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_started(given: list[str], says: str):
    said = env("play", "echo", *given)
    assert said.code == 1
    assert says in said.text


@pytest.mark.long
def test_ctrl_d_leaves_and_stops_the_server():
    said = env("play", "echo", "--seed", "1", typed="")
    assert said.code == 0
    assert said.text.endswith("The episode was abandoned.\n")


def pressed(playing: "subprocess.Popen[bytes]") -> int:
    """How it ends after Ctrl-C, pressed again where it came in the moment before the terminal was read."""
    for _ in range(10):
        playing.send_signal(signal.SIGINT)
        try:
            return playing.wait(timeout=10)
        except subprocess.TimeoutExpired:
            continue
    playing.kill()
    raise AssertionError("it does not hear Ctrl-C")


@pytest.mark.long
def test_ctrl_c_at_a_terminal_leaves_and_stops_the_server():
    terminal, its_end = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "play", "echo", "--seed", "1"],
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        start_new_session=True,
        preexec_fn=hears_ctrl_c,
    ) as playing:
        shown = b""
        while b"message: " not in shown:
            assert select.select([terminal], [], [], 120)[0], shown
            shown += os.read(terminal, 1000)
        children = Path(f"/proc/{playing.pid}/task/{playing.pid}/children").read_text().split()
        assert children, "the environment's server"
        assert pressed(playing) == 130
    os.close(its_end)
    os.close(terminal)
    assert not any(Path(f"/proc/{child}").exists() for child in children)


class NoSettings(BaseModel):
    """A toy needs none."""


class Toy(ToolEnvironment):
    """Find the number 7, in three turns; needs no server."""

    Settings = NoSettings
    version = "1"

    @property
    def max_turns(self) -> int:
        return 3

    @property
    def instructions(self) -> str:
        return "Find the number."

    def reset(self, *, seed: int, **row: Any) -> str:
        self.reward, self.done, self.tried = 0.0, False, []
        return "From 1 to 9."

    def guess(self, number: int, note: str = "none") -> str:
        """Guess.

        Args:
            number: A number.
            note: Why.
        """
        self.tried.append((number, note))
        if number > 9:
            raise ValueError("At most 9.")
        self.done, self.reward = number == 7, float(number == 7)
        return "Right." if self.done else "Wrong."

    def give_up(self) -> str:
        """Give up."""
        self.done = True
        return "OK."


def played(*typed: str, environment: ToolEnvironment | None = None) -> tuple[Toy, str]:
    """A toy that was played by typing, and all that was shown."""
    toy, shown, lines = environment or Toy(NoSettings()), [], iter(typed)

    def ask(prompt: str) -> str:
        shown.append(prompt)
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    play(Player(toy), 0, ask, shown.append)
    assert isinstance(toy, Toy)
    return toy, "\n".join(shown)


def test_tools_are_named_by_their_first_letters_and_arguments_by_their_names():
    toy, shown = played("gu", "3", "", "guess", "7", "it is left")
    assert toy.tried == [(3, "none"), (7, "it is left")]
    assert "Tool (give_up, guess): " in shown
    assert "note (optional): " in shown
    assert "Turn 1 of 3." in shown
    assert shown.endswith("Reward 1.00 of 1.")


class Declining(Toy):
    """Takes "no" for the right answer, in words."""

    def say(self, text: str) -> None:
        self.done, self.reward = True, float(text == "No.")


def test_a_text_is_chosen_as_a_tool_is_and_ends_the_episode():
    toy, shown = played("say", "No.", environment=Declining(NoSettings()))
    assert toy.tried == []
    assert "Tool (give_up, guess, say): " in shown
    assert shown.endswith("text: \nReward 1.00 of 1.")
    assert "Tool (give_up, guess): " in played("guess", "7", "")[1], "elsewhere a text is no choice"


def test_what_cannot_be_meant_is_told_and_asked_again_and_costs_no_turn():
    toy, shown = played("fly", "g", "guess", "seven", "", "7", "")
    assert toy.tried == [(7, "none")]
    assert "There is no tool 'fly'." in shown
    assert "This may be give_up or guess." in shown
    assert "'seven' is not of type 'integer'" in shown
    assert "number is required. A number." in shown


def test_what_the_game_refuses_costs_a_turn_as_it_costs_a_model():
    toy, shown = played("guess", "70", "", "guess", "8", "", "give_up")
    assert len(toy.tried) == 2
    assert "{'error': 'At most 9.'}" in shown
    assert "Turn 3 of 3." in shown
    assert shown.endswith("Reward 0.00 of 1.")


def test_a_server_that_refuses_or_goes_away_is_told():
    class Broken(Toy):
        why: Exception

        def reset(self, *, seed: int, **row: Any) -> str:
            raise self.why

    broken = Broken(NoSettings())
    for broken.why, says in (
        (Refused("no such set"), "refuses the question: no such set"),
        (SessionLost("gone"), "connection to the server was lost: gone"),
    ):
        with pytest.raises(Stop, match=says):
            played("7", environment=broken)


@pytest.mark.long
def test_a_mixture_is_played_in_the_environment_that_the_seed_belongs_to():
    said = env("play", "multi", "--seed", "3", typed="htob\n")  # of multi-laptop.yaml
    assert "Spell this word backward" in said.text
    assert "Reward 1.00 of 1." in said.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "multi"), "a mixture has no server of its own"),
        (("check", "http://127.0.0.1:9", "--environment", "multi"), "Choose one: --environment catch"),
        (("play", "multi", "--url", "http://127.0.0.1:9"), "A mixture has no server of its own."),
    ],
)
def test_a_mixture_has_no_server_to_serve_to_check_or_to_name(arguments: tuple[str, ...], words: str):
    said = env(*arguments)
    assert said.code == 1
    assert words in said.text


def test_a_server_of_one_environment_of_a_mixture_is_checked_against_the_whole_recipe(echo: str):
    recipe = str(RECIPES / "multi-laptop.yaml")
    said = env("check", echo, "--recipe", recipe, "--environment", "echo")
    assert "it grants 5; training needs 128" in said.text
    assert said.code == 0
