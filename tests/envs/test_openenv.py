"""Servers with the properties of published ones are played by their address, or refused with the true reason."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import ValidationError

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.serving.command import command_server
from apprentice.envs.wire.metrics import counted
from apprentice.envs.wire.server import EnvironmentServer, ServerFailed
from apprentice.envs.wire.session import Session, SessionLost
from apprentice.flows.audit.audit import Report, audit
from apprentice.flows.audit.play.subject import Extent, Needs, Subject
from apprentice.flows.runtime.servers import completed
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.reporting.errors import Stop
from tests.envs.discovered import called, playing
from tests.envs.published import oddities
from tests.envs.published.parity import StrictLabel, app, over_http, parity
from tests.envs.published.serving import serving

APPS: dict[str, Callable[[], FastAPI]] = {
    "seeded": lambda: app(parity()),
    "fixed": lambda: app(parity("fixed")),
    "random": lambda: app(parity("random")),
    "counting": lambda: app(parity("counting")),
    "hidden": lambda: app(parity("hidden")),
    "by name": lambda: app(parity("by name")),
    "first of a session": lambda: app(parity("first of a session"), sessions=1),
    "penalties": lambda: app(parity(low=-5.0, high=12.0)),
    "with hint": lambda: app(parity(hint="odd numbers end in 1, 3, 5, 7 or 9")),
    "with ids": lambda: app(parity(with_ids=True)),
    "strict": lambda: app(parity(), StrictLabel),
    "crashing": lambda: app(parity(crashes_on="blue")),
    "without rewards": lambda: app(parity(rewards=False)),
    "one instance": lambda: app(parity(), shared=True),
    "one session": lambda: app(parity(), sessions=1),
    "another one": lambda: app(parity(), sessions=1),
    "over http": over_http,
    "in turn": lambda: oddities.served(oddities.InTurn),
    "levels": lambda: oddities.served(oddities.SeededLevels),
}
TASKS = [{"task_id": "easy"}, {"task_id": "medium"}, {"task_id": "hard"}]


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], EnvironmentServer]]:
    with ExitStack() as stack:
        started: dict[str, EnvironmentServer] = {}

        def server(name: str) -> EnvironmentServer:
            if name not in started:
                started[name] = EnvironmentServer(url=stack.enter_context(serving(APPS[name]())), message_timeout=60)
            return started[name]

        yield server


Servers = Callable[[str], EnvironmentServer]


@pytest.fixture
def begin(servers: Servers) -> Iterator[Callable[..., Episode]]:
    """Begins an episode on a server, under settings."""
    with ExitStack() as stack:

        def begun(name: str, seed: int = 1, **settings: Any) -> Episode:
            begin = stack.enter_context(playing(servers(name)))
            return begin(EnvironmentSpec(settings=settings), seed)

        yield begun


def right(question: str) -> str:
    return "even" if int(question.split()[2 if question.startswith("text:") else 1]) % 2 == 0 else "odd"


def test_a_server_is_played_by_its_address_alone(servers: Servers, begin: Callable[..., Episode]):
    spec = completed(EnvironmentSpec(), servers("seeded"))
    (tool,) = spec.make().schemas
    assert tool["function"] == {
        "name": "act",
        "description": "Say which it is.",
        "parameters": {
            "type": "object",
            "properties": {"label": {"type": "string", "description": "odd or even"}},
            "required": ["label"],
        },
    }
    assert str(spec) == "openenv Parity 1.0.0 typed"
    episode = begin("seeded")
    assert episode.question == begin("seeded").question != begin("seeded", seed=2).question
    assert episode.question.startswith("Is "), "an observation of one text is that text"
    episode.step(called("act", label=right(episode.question)))
    assert (episode.messages[-1]["content"], episode.reward, episode.done) == ("graded", 1.0, True)


HINT = "odd numbers end in 1, 3, 5, 7 or 9"
SHOWN = f"text: Is 2202 odd or even?\nhint: {HINT}"


@pytest.mark.parametrize(
    ("settings", "question", "reply"),
    [
        ({}, SHOWN, f"text: graded\nhint: {HINT}"),
        ({"question": ["text"]}, "Is 2202 odd or even?", f"text: graded\nhint: {HINT}"),
        ({"question": ["hint", "text"]}, f"{HINT}\n\nIs 2202 odd or even?", f"text: graded\nhint: {HINT}"),
        ({"reply": ["text"]}, SHOWN, "graded"),
        ({"question": ["state.step_count"]}, "step_count: 0", f"text: graded\nhint: {HINT}"),
    ],
)
def test_settings_choose_what_is_shown(
    begin: Callable[..., Episode], settings: dict[str, Any], question: str, reply: str
):
    episode = begin("with hint", **settings)
    assert episode.question == question
    episode.step(called("act", label="odd"))
    assert episode.messages[-1]["content"] == reply


def test_what_changes_on_every_reset_is_no_part_of_the_question(servers: Servers, begin: Callable[..., Episode]):
    assert completed(EnvironmentSpec(), servers("with ids")).settings["passing"] == ["episode_id"]
    assert begin("with ids").question == "Is 2202 odd or even?"
    assert checked(servers("with ids")).wrong is None


def test_a_seed_is_a_row_of_the_tasks(begin: Callable[..., Episode]):
    asked = [begin("by name", seed=seed, tasks=TASKS) for seed in range(4)]
    assert [int(each.question.split()[1]) for each in asked] == [2, 37, 418, 2]
    assert asked[1].player.slices(1, "") == {"task_id": "medium"}


def test_a_question_is_a_task_and_a_seed_where_both_count(servers: Servers, begin: Callable[..., Episode]):
    given = {"tasks": [{"difficulty": "easy"}, {"difficulty": "hard"}], "seeded_tasks": True}
    asked = [begin("levels", seed=seed, **given) for seed in range(6)]
    assert [len(each.question.split()[1]) for each in asked] == [1, 6, 1, 6, 1, 6]
    assert len({each.question for each in asked}) > 4
    assert EnvironmentSpec(settings=given).questions is None
    assert checked(servers("levels"), **given).wrong is None


def test_a_question_is_the_nth_reset_of_a_session_where_these_go_through_the_tasks(
    servers: Servers, begin: Callable[..., Episode]
):
    episodes = [begin("in turn", seed=seed, rotation=3) for seed in range(4)]
    assert [int(each.question.split()[1]) for each in episodes] == [12, 345, 6789, 12]
    for episode, label in zip(episodes, ("even", "odd", "odd", "even"), strict=True):
        episode.step(called("act", label=label))
        assert episode.reward == 1.0
    assert EnvironmentSpec(settings={"rotation": 3}).questions == 3
    assert checked(servers("in turn"), rotation=3).wrong is None


def test_where_sessions_take_turns_the_nth_reset_is_replayed(servers: Servers):
    spec = completed(EnvironmentSpec(settings={"rotation": 3}), servers("in turn"))
    host = Session(servers("in turn"))
    guests = [Session(servers("in turn")) for _ in range(3)]
    try:
        for guest in guests:
            guest.join(host)
        episodes = [Episode(spec.make(guest), seed) for seed, guest in enumerate(guests)]
        assert [int(each.question.split()[1]) for each in episodes] == [12, 345, 6789]
        for episode, label in zip(episodes, ("even", "odd", "odd"), strict=True):
            episode.step(called("act", label=label))
        assert [each.reward for each in episodes] == [1.0, 1.0, 1.0]
    finally:
        for each in (*guests, host):
            each.close()


def test_players_of_one_session_begin_their_episodes_each_in_its_own_way(servers: Servers):
    specs = [
        completed(EnvironmentSpec(settings=each), servers("in turn")) for each in ({"rotation": 3}, {"one_task": True})
    ]
    session = Session(servers("in turn"))
    try:
        in_turn, one = (each.make(session) for each in specs)
        asked = [in_turn.ask(2), one.ask(0), in_turn.ask(1)]
        assert [int(each.split()[1]) for each in asked] == [6789, 12, 345]
    finally:
        session.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seeded_tasks": True}, "seeded_tasks needs tasks"),
        ({"seeded_tasks": True, "tasks": 100}, "seeded_tasks sends a seed of its own"),
        ({"seeded_tasks": True, "tasks": TASKS, "reset": {"seed": 5}}, "seeded_tasks sends a seed of its own"),
        ({"rotation": 3, "one_task": True}, "rotation and tasks or one_task exclude each other"),
    ],
)
def test_settings_that_cannot_count_are_refused(settings: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        EnvironmentSpec.model_validate(settings)


def test_tasks_may_stand_in_a_file_and_are_part_of_the_recipe_from_then_on(tmp_path: Path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in TASKS))
    spec = EnvironmentSpec.model_validate({"tasks": str(path)})
    path.unlink()
    assert spec.settings["tasks"] == TASKS
    assert spec.questions == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("", "has no line"),
        ("{}\nodd\n", r"line 2 of .* is no JSON:"),
        ("{}\n[1]\n", r"line 2 of .* is no JSON object"),
    ],
)
def test_a_file_without_tasks_is_refused_with_its_line(tmp_path: Path, text: str | None, words: str):
    path = tmp_path / "tasks.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValidationError, match=words):
        EnvironmentSpec.model_validate({"tasks": str(path)})


def test_every_seed_is_another_try_of_the_one_task(servers: Servers, begin: Callable[..., Episode]):
    assert begin("fixed", seed=1, one_task=True).question == begin("fixed", seed=2, one_task=True).question
    assert checked(servers("fixed"), one_task=True).wrong is None


def test_where_only_the_first_reset_of_a_session_is_the_same_each_episode_has_a_session(servers: Servers):
    server = servers("first of a session")
    assert checked(server).wrong is not None
    assert checked(server, new_sessions=True, one_task=True).wrong is None
    spec = completed(EnvironmentSpec(settings={"new_sessions": True, "one_task": True}), server)
    with EnvironmentPool(spec, server, 3) as pool:
        pool.open_all()
        played = play_together(pool) + play_together(pool)
    assert played == [played[0]] * 6, "also where episodes take turns"


@pytest.mark.parametrize(
    ("server", "label", "said"),
    [
        ("strict", "blue", "The environment refuses this action: its values are not allowed."),
        ("crashing", "blue", "blue is not allowed"),
    ],
)
def test_a_refused_action_is_a_reply_and_costs_a_turn(
    begin: Callable[..., Episode], server: str, label: str, said: str
):
    episode = begin(server)
    for _ in range(2):
        episode.step(called("act", label=label))
        assert said in episode.messages[-1]["content"]
    assert (episode.done, episode.broken, episode.turns) == (False, "", 2)
    episode.step(called("act", label=right(episode.question)))
    assert (episode.reward, episode.done) == (1.0, True)


def test_a_server_is_asked_once_more_whether_its_crash_is_a_refusal(begin: Callable[..., Episode]):
    """A connection may cost seconds there, and a student's first episodes hold many wrong calls."""
    episode = begin("crashing")
    with counted() as counts:
        for _ in range(5):
            episode.step(called("act", label="blue"))
    assert counts.get("reconnects") == 1
    assert (episode.turns, episode.broken) == (5, "")


@pytest.mark.parametrize(
    ("settings", "wrong", "best"),
    [
        ({}, -5.0, 12.0),
        ({"scale": [-5, 12]}, 0.0, 1.0),
        ({"scale": [0, 10]}, 0.0, 1.2),
        ({"scale": [-22, 12]}, 0.5, 1.0),
    ],
)
def test_rewards_are_scaled_by_what_counts_as_wrong_and_as_right(
    begin: Callable[..., Episode], settings: dict[str, Any], wrong: float, best: float
):
    for answer, reward in (("neither", wrong), ("right", best)):
        episode = begin("penalties", **settings)
        episode.step(called("act", label=right(episode.question) if answer == "right" else answer))
        assert episode.reward == pytest.approx(reward)


def checked(server: EnvironmentServer, **settings: Any) -> Report:
    """What a run's preflight finds."""
    spec = completed(EnvironmentSpec(settings=settings), server)
    return audit(Subject(server, spec, Needs(0, 0, 0)), quick=True)


@pytest.mark.parametrize(
    ("server", "check", "found", "remedy"),
    [
        ("fixed", "seeds.ignored", "5 seeds gave the same question", "environment.one_task: true"),
        ("random", "seeds.repeat", "each reset draws a new start", "def reset(self, seed=None"),
        ("counting", "seeds.repeat", "each reset draws a new start, or counts on", "environment.tasks"),
        ("without rewards", "reward.range", "20 calls of all its tools had no reward", "whose steps return a reward"),
    ],
)
def test_a_server_that_cannot_be_trained_on_is_refused_with_the_reason_and_what_helps(
    servers: Servers, server: str, check: str, found: str, remedy: str
):
    wrong = checked(servers(server)).wrong
    assert wrong is not None
    assert (wrong.check, found in wrong.found, remedy in wrong.remedy) == (check, True, True), wrong


def test_a_draw_that_the_question_does_not_show_is_found_in_the_state(servers: Servers):
    wrong = checked(servers("hidden"), one_task=True).wrong
    assert wrong is not None
    assert wrong.found == "the same seed gave the same question, but not the same episode"
    assert "state.secret is 'number" in str(wrong.evidence[0])


def test_a_server_without_a_websocket_is_refused_at_once_with_what_it_has_instead(servers: Servers):
    with pytest.raises(Stop, match=r"no WebSocket at /ws \(status 403\); it takes /reset and /step over HTTP"):
        completed(EnvironmentSpec(), servers("over http"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("server", "settings", "failed"),
    [
        ("seeded", {}, []),
        ("seeded", {"reward_range": [-1, 1]}, []),
        pytest.param("strict", {}, [], marks=pytest.mark.long),  # every odd call is sent twice
        ("penalties", {"scale": [-5, 12]}, []),
        ("one instance", {}, ["isolation.grading"]),
    ],
)
def test_an_audit_sees_what_spoils_a_training_and_nothing_else(
    servers: Servers, server: str, settings: dict[str, Any], failed: list[str]
):
    spec = completed(EnvironmentSpec(settings=settings), servers(server))
    extent = Extent(seeds=12, samples=100, seconds=2.0)
    report = audit(Subject(servers(server), spec, Needs(0, 0, 4), extent=extent))
    assert [each.check for each in report.of("error")] == failed


def play_together(pool: EnvironmentPool, turns: int = 1) -> list[tuple[str, float | None]]:
    """Begins all episodes, and only then plays them: the questions and rewards."""
    begun = pool.together(lambda index: Episode(pool.players[index], index), len(pool.players))

    def answer(index: int) -> tuple[str, float | None]:
        for label in ["blue"] * (turns - 1) + [right(begun[index].question)]:
            begun[index].step(called("act", label=label))
        return begun[index].question, begun[index].reward

    return pool.together(answer, len(pool.players))


def test_episodes_take_turns_in_one_session_and_are_those_of_sessions_of_their_own(servers: Servers):
    spec, said = completed(EnvironmentSpec(), servers("seeded")), []
    with EnvironmentPool(spec, servers("seeded"), 6) as several:
        several.open_all()
        alone = play_together(several)
    with EnvironmentPool(spec, servers("one session"), 6, said.append) as pool:
        pool.open_all()
        assert play_together(pool) == alone
    assert {reward for _, reward in alone} == {1.0}
    assert "grants 1 of 6 sessions, so 6 episodes take turns" in said[0]
    assert "max_concurrent_envs" in said[0]


def test_a_server_that_replies_otherwise_in_a_replay_loses_the_episode_and_says_why(servers: Servers):
    spec = completed(EnvironmentSpec(settings={"one_task": True}), servers("counting"))
    with EnvironmentPool(spec, servers("counting"), 2) as pool:
        pool.sessions[1].join(pool.sessions[0])
        played = play_together(pool)
    assert None in [reward for _, reward in played]
    assert any("replies otherwise when an episode is replayed" in str(each.failure) for each in pool.players)


def test_copies_of_a_server_are_used_as_one(servers: Servers):
    urls = [servers(name).url for name in ("one session", "another one")]
    server = EnvironmentServer.model_validate({"urls": urls, "message_timeout": 60})
    spec, said = completed(EnvironmentSpec(), server), []
    with EnvironmentPool(spec, server, 2, said.append) as pool:
        pool.open_all()
        assert {reward for _, reward in play_together(pool)} == {1.0}
    assert not said, "each copy grants a session"


@pytest.mark.long
def test_a_step_that_takes_longer_than_a_message_may_names_the_limit_and_not_an_outage():
    with serving(app(parity(seconds=0.4))) as url:
        session = Session(EnvironmentServer(url=url, message_timeout=0.1))
        session.reset(seed=1)
        with pytest.raises(SessionLost, match=r"no reply to step within 0\.1 s \(server\.message_timeout\), \d times"):
            session.step({"label": "odd"})
        session.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"command": "uvicorn app:app"}, "command must say where the port goes"),
        ({"command": "serve {port}", "url": "http://127.0.0.1:1"}, "url and command exclude each other"),
        ({"urls": ["http://127.0.0.1:1", "nowhere"]}, "urls"),
    ],
)
def test_a_server_that_is_named_twice_or_not_at_all_is_refused(given: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        EnvironmentServer.model_validate(given)


SERVER = """
import http.server, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


@pytest.mark.long
def test_a_command_serves_while_the_block_runs_and_ends_with_a_parent_that_is_killed(tmp_path: Path):
    (tmp_path / "serve.py").write_text(SERVER)
    command = f"{sys.executable} {tmp_path}/serve.py {{port}}"
    with command_server(command, patience=60) as url:
        assert url.startswith("http://127.0.0.1:")
    with pytest.raises(ServerFailed, match="exited with code 1: ValueError"):
        command_server(f"{sys.executable} {tmp_path}/serve.py x{{port}}", patience=60).__enter__()
    with pytest.raises(ServerFailed, match="no-such-program exited with code 1: it cannot be run: No such file"):
        command_server("no-such-program {port}", patience=60).__enter__()
    starts = (
        "import sys\nfrom apprentice.envs.serving.command import command_server\n"
        "with command_server(sys.argv[1], 60) as url:\n    print(url, flush=True)\n    sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", starts, command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    port = int(parent.stdout.readline().decode().rpartition(":")[2])
    parent.kill()
    parent.wait()
    wait_until_free(port)


def wait_until_free(port: int) -> None:
    import socket

    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return
