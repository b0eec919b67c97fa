"""Forms in a real browser: what is written arrives as it was written, and sessions share browsers but nothing else."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from apprentice.envs.browsergym import env, forms
from apprentice.envs.browsergym.browser import BrowserThread
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, Session

pytestmark = pytest.mark.long

SMALL = {"fields": 1, "choices": 0, "buttons": 2, "texts": "words"}
FORM = {"seed": 1, "task_name": "form"} | SMALL


@pytest.fixture(scope="module")
def server() -> Iterator[EnvironmentServer]:
    with local_server("apprentice.envs.serving.serve", "browsergym", "--max-sessions", "16") as url:
        yield EnvironmentServer(url=url, message_timeout=120)


@pytest.fixture
def made(server: EnvironmentServer) -> Iterator[Any]:
    """Makes environments, and closes them."""
    open_ones = []

    def make(**settings: Any) -> Any:
        open_ones.append(EnvironmentSpec(name="browsergym", settings=settings).make(Session(server)))
        return open_ones[-1]

    yield make
    for each in open_ones:
        each.close()


def first_messages(environment: Any, seed: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": environment.ask(seed)}]


def turn(environment: Any, messages: list[dict[str, Any]], error_rate: float = 0.0) -> None:
    """One turn of the scripted policy."""
    name, arguments = env.call({}, messages, error_rate)
    messages.append({"role": "tool", "content": getattr(environment, name)(**arguments)})


def played(environment: Any, seed: int, error_rate: float = 0.0) -> float | None:
    messages = first_messages(environment, seed)
    for _ in range(environment.max_turns):
        if not environment.done:
            turn(environment, messages, error_rate)
    return environment.reward


def test_the_same_seed_is_the_same_form_on_two_servers(made, server: EnvironmentServer):
    with local_server("apprentice.envs.serving.serve", "browsergym") as url:
        here, there = made(), EnvironmentSpec(name="browsergym").make(Session(EnvironmentServer(url=url)))
        questions = [(here.ask(seed), there.ask(seed)) for seed in (7, 2 * 10**8, 7)]
        there.close()
    assert all(one == two for one, two in questions)
    assert questions[0] == questions[2] != questions[1]


def test_the_player_reads_the_goal_and_the_page_and_after_a_move_what_is_new(made):
    environment = made(fields=1, choices=1, buttons=1)
    page = environment.ask(3).partition("\n\n")[2].splitlines()
    assert [line.partition("] ")[2].partition(" ")[0] for line in page if not line.startswith("\t")] == [
        *("textbox", "combobox", "button")
    ]
    bid = page[0].partition("]")[0][1:]
    assert environment.environment.fill(bid, "here") == f"{page[0]} value='here'"
    assert environment.environment.fill(bid, "here") == "Nothing changed."


def test_texts_with_quotes_backslashes_markup_line_breaks_and_any_script_arrive_as_they_were_asked_for(made):
    environment, unseen, seed = made(fields=8, choices=0), set(forms.AWKWARD), 0
    while unseen:
        held = {text for text in unseen if any(text in wanted for wanted in _form(seed, fields=8).wanted.values())}
        assert not held or played(environment, seed) == 1.0, held
        unseen, seed = unseen - held, seed + 1


@pytest.mark.parametrize(
    "text",
    ["O'Connor", "both ' and \"", "C:\\", "two\nlines", "'''\"\"\"", "#", "\0\7", "\ud800", "\u2028\u3000", "ا 東 🙂"],
)
def test_whatever_a_model_writes_is_one_text_and_the_session_goes_on(made, text: str):
    environment = made(**SMALL)
    messages = first_messages(environment, 5)
    bid = env.call({}, messages, 0.0)[1]["bid"]
    reply = environment.environment.fill(bid, text)
    if text.isprintable():
        assert reply.endswith(f"value={text!r}")
    environment.environment.fill(bid, "'); click('0")
    while not environment.done:
        turn(environment, messages)
    assert environment.reward == 1.0


def test_a_text_that_is_too_long_is_said_to_be_and_a_long_one_is_written(made):
    environment = made(**SMALL)
    bid = env.call({}, first_messages(environment, 5), 0.0)[1]["bid"]
    with pytest.raises(ValueError, match="too long"):
        environment.environment.fill(bid, "x" * 30_000)
    assert "x" * 15_000 in environment.environment.fill(bid, "x" * 15_000)


def test_a_bid_is_the_same_as_number_as_text_and_in_brackets(made):
    environment = made(**SMALL)
    bid = env.call({}, first_messages(environment, 5), 0.0)[1]["bid"]
    replies = {
        environment.environment.fill(given, f"text {n}")[:-3] for n, given in enumerate((bid, int(bid), f" [{bid}]"))
    }
    assert len(replies) == 1


def test_moves_that_cannot_be_made_are_told_in_words_and_earn_nothing(made):
    environment = made(fields=1, choices=1, buttons=1)
    question = environment.ask(5)
    bids = {name: bid for bid, _, name in env.ELEMENT.findall(question)}
    field, chosen, button = bids.values()
    for move, words in (
        (lambda: environment.environment.click("Send"), "bid must be a whole number"),
        (lambda: environment.environment.click("99"), 'Could not find element with bid "99"'),
        (lambda: environment.environment.click(str(int(chosen) + 1)), "not visible"),
        (lambda: environment.environment.fill(button, "x"), f"{button} is no text field"),
        (lambda: environment.environment.select_option(chosen, "nothing"), f"{chosen} has no such option: nothing"),
        (lambda: environment.environment.select_option(field, "red"), f"{field} has no such option"),
    ):
        with pytest.raises(ValueError, match=words):
            move()
    assert environment.reward == 0.0
    assert not environment.done


def test_the_reward_is_the_share_of_what_was_asked_for(made):
    environment = made(fields=2, choices=1, buttons=2)
    rewards = []
    for moves in range(4):
        messages = first_messages(environment, 9)
        button = next(
            bid for bid, _, name in env.ELEMENT.findall(messages[0]["content"]) if f"Press {name}." in str(messages)
        )
        for _ in range(moves):
            turn(environment, messages)
        environment.environment.click(button)
        rewards.append(environment.reward)
    assert rewards == [0.25, 0.5, 0.75, 1.0]


def test_the_last_reply_gives_nothing_away_and_no_call_counts_after_it(made):
    environment = made(**SMALL)
    replies = set()
    for error_rate in (0.0, 0.99):
        messages = first_messages(environment, 5)
        while not environment.done:
            turn(environment, messages, error_rate)
        replies.add(messages[-1]["content"])
    assert replies == {"OK."}
    assert environment.reward == 0.5
    with pytest.raises(ValueError, match="over"):
        environment.environment.click("9")
    assert environment.reward == 0.5


def test_many_sessions_at_once_do_not_disturb_one_another(made):
    environments = [made(**SMALL) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        conversations = list(threads.map(first_messages, environments, range(8)))
        while not all(each.done for each in environments):
            list(threads.map(turn, environments, conversations))
    assert len({each[0]["content"] for each in conversations}) == 8
    assert [each.reward for each in environments] == [1.0] * 8


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"seed": None}, r"names its form: send a seed"),
        ({"fields": 9}, "fields must be 0 to 8"),
        ({"texts": "none"}, "texts must be one of"),
        ({"x": 1}, "a form has no x; it has fields, choices, buttons, texts"),
        ({"task_name": "click-test"}, "no task 'click-test'; there is 'form'"),
    ],
)
def test_the_server_refuses_a_reset_that_names_no_form(server: EnvironmentServer, given: dict[str, Any], why: str):
    session = Session(server)
    with pytest.raises(Refused, match=why):
        session.reset(**FORM | given)
    session.close()


def test_a_seed_alone_is_a_form_of_the_usual_size_and_published_clients_find_its_page(server: EnvironmentServer, made):
    session = Session(server)
    seen = session.reset(seed=3).observation
    session.close()
    assert seen["axtree_txt"] == seen["text"]
    assert f"{seen['goal']}\n\n{seen['text']}" == made().ask(3)


def test_an_action_that_is_not_one_of_ours_is_told_so_over_the_published_wire(server: EnvironmentServer):
    session = Session(server)
    first = session.reset(**FORM).observation
    assert first["goal"]
    for action in ("noop(60000)", "goto('http://127.0.0.1')", "click('8') click('9')", "import os", "click(page)", ""):
        reply = session.step({"action_str": action})
        assert reply.observation["last_action_error"], action
        assert "An action is one call" in reply.observation["error"], action
        assert reply.observation["text"] == first["text"]
        assert (reply.reward, reply.done) == (0.0, False)
    assert "argument" in session.step({"action_str": "click()"}).observation["error"]
    session.close()


def test_a_session_that_is_closed_leaves_nothing_and_the_browsers_end_with_their_server():
    others = _chromiums()
    with local_server("apprentice.envs.serving.serve", "browsergym") as url:
        server = EnvironmentServer(url=url, message_timeout=120)
        environments = [EnvironmentSpec(name="browsergym").make(Session(server)) for _ in range(4)]
        pages = []
        for environment in environments:
            environment.ask(1)
            pages.append(_pages(_chromiums() - others))
        for environment in environments:
            environment.close()
        _until(lambda: _pages(_chromiums() - others) <= pages[0])
        ours = _chromiums() - others
    assert pages[-1] > pages[0]
    assert ours
    assert not psutil.wait_procs(ours, timeout=240)[1]


def test_a_browser_that_dies_does_not_cost_the_episode():
    others = _chromiums()
    with local_server("apprentice.envs.serving.serve", "browsergym") as url:
        server = EnvironmentServer(url=url, message_timeout=120)
        environment = EnvironmentSpec(name="browsergym", settings=SMALL).make(Session(server))
        messages = first_messages(environment, 5)
        turn(environment, messages)
        for process in _chromiums() - others:
            process.kill()
        turn(environment, messages)
        environment.close()
    assert environment.reward == 1.0


def test_the_browser_reaches_nothing_but_the_forms():
    """Not even what else listens on this machine."""
    requests = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_error(418)

    elsewhere = HTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
    thread = BrowserThread()

    def visit(url: str) -> int | str:
        from playwright.sync_api import Error

        context = thread.new_context()
        try:
            reply = context.new_page().goto(url)
            return reply.status if reply else "nothing"
        except Error as error:
            return str(error)
        finally:
            context.close()

    here = f"http://127.0.0.1:{elsewhere.server_port}/"
    assert [thread.submit(visit, url).result() for url in (here, "http://example.com/", "http://169.254.169.254/")] == [
        *(403, 403, 403)
    ]
    assert "ERR_TUNNEL" in str(thread.submit(visit, "https://example.com/").result())
    elsewhere.shutdown()
    assert requests == []


def test_without_a_chromium_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    with local_server("apprentice.envs.serving.serve", "browsergym") as url:
        session = Session(EnvironmentServer(url=url))
        with pytest.raises(Refused, match="apt-get install chromium"):
            session.reset(**FORM)
        session.close()


def _form(seed: int, fields: int = 1) -> forms.Form:
    return forms.draw(seed, fields=fields, choices=0, buttons=2, texts="any")


def _chromiums() -> set[psutil.Process]:
    """Those that this process's servers started."""
    return {process for process in psutil.Process().children(recursive=True) if "chrom" in _property(process, "name")}


def _pages(processes: set[psutil.Process]) -> int:
    return sum("--type=renderer" in _property(process, "cmdline") for process in processes)


def _property(process: psutil.Process, what: str) -> str:
    try:
        return str(getattr(process, what)())
    except psutil.NoSuchProcess:
        return ""


def _until(condition: Any, seconds: float = 60) -> None:
    waited = threading.Event()
    for _ in range(int(seconds * 10)):
        if condition():
            return
        waited.wait(0.1)
    raise AssertionError("it never came to be")
