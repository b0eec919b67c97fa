"""The environment of forms without a browser: what a reset and a step say, and what a tool makes of it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.envs.browsergym import browser, game, pages
from apprentice.envs.browsergym.env import Environment, Settings
from apprentice.envs.wire.reply import Reply

FORM = {"fields": 1, "choices": 1, "buttons": 2, "texts": "words"}


class Tab:
    """Answers as the browser's would."""

    def __init__(self, *answers: tuple[str, str, float, bool]):
        self.answers = list(answers)
        self.tasks: list[browser.FormTask] = []
        self.done: list[str] = []
        self.closed = False

    def start(self, form: browser.FormTask) -> tuple[str, str]:
        self.tasks.append(form)
        return form.form.goal, "the page"

    def act(self, action: str) -> tuple[str, str, float, bool]:
        self.done.append(action)
        return self.answers.pop(0)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made() -> tuple[game.BrowserGymEnvironment, Tab]:
    environment = game.BrowserGymEnvironment()
    tab = Tab(("after", "", 0.0, False), ("same", "no such bid", 0.0, False), ("", "", 0.5, True))
    environment._tab = tab  # type: ignore[assignment]
    return environment, tab


def test_a_reset_draws_the_form_that_it_names_and_fills_in_the_usual_one(made: Any):
    environment, tab = made
    observation = environment.reset(seed=7, episode_id="one", task_name="form", fields=3)
    usual = {"fields": 2, "choices": 1, "buttons": 2, "texts": "any"}
    assert tab.tasks[0].form == browser.FormTask(7, **usual | {"fields": 3}).form
    assert observation.model_dump(exclude={"metadata"}) == {
        "text": "the page",
        "axtree_txt": "the page",
        "goal": tab.tasks[0].form.goal,
        "error": "",
        "last_action_error": False,
        "done": False,
        "reward": 0.0,
    }
    assert (environment.state.episode_id, environment.state.step_count) == ("one", 0)
    environment.reset(seed=7)
    first = environment.state.episode_id
    environment.reset(seed=7)
    assert None is not first != environment.state.episode_id


def test_a_step_says_what_was_wrong_counts_and_ends_the_episode_once(made: Any):
    environment, tab = made
    with pytest.raises(ValueError, match="no episode runs: reset first"):
        environment.step(game.BrowserGymAction(action_str="click('1')"))
    environment.reset(seed=7)
    found = [environment.step(game.BrowserGymAction(action_str=f"click('{n}')")) for n in range(3)]
    assert [(each.text, each.error, each.last_action_error, each.reward, each.done) for each in found] == [
        ("after", "", False, 0.0, False),
        ("same", "no such bid", True, 0.0, False),
        ("", "", False, 0.5, True),
    ]
    assert all(each.axtree_txt == each.text and each.goal == tab.tasks[0].form.goal for each in found)
    assert tab.done == ["click('0')", "click('1')", "click('2')"]
    assert environment.state.step_count == 3
    with pytest.raises(ValueError, match="no episode runs: reset first"):
        environment.step(game.BrowserGymAction(action_str="click('1')"))
    environment.close()
    assert tab.closed


def test_the_servers_loop_gets_the_same_from_a_reset_and_a_step(made: Any):
    environment, _ = made

    async def played() -> tuple[Any, Any]:
        reset = await environment.reset_async(seed=7, episode_id="one", fields=0)
        return reset, await environment.step_async(game.BrowserGymAction(action_str="click('1')"))

    reset, stepped = asyncio.run(played())
    assert reset.goal == browser.FormTask(7, **game.USUAL | {"fields": 0}).form.goal
    assert environment.state.episode_id == "one"
    assert (stepped.text, environment.state.step_count) == ("after", 1)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"seed": None}, "names its form: send a seed"),
        ({"seed": 1, "fields": 9}, "fields must be 0 to 8"),
        ({"seed": 1, "x": 1, "a": 2}, "a form has no a, x; it has fields, choices, buttons, texts"),
        ({"seed": 1, "task_name": "click-test"}, "no task 'click-test'; there is 'form'"),
    ],
)
def test_a_reset_that_names_no_form_is_refused(made: Any, given: dict[str, Any], why: str):
    with pytest.raises(ValueError, match=why):
        made[0].reset(**given)


def test_a_form_counts_once_it_was_sent_and_has_arrived(monkeypatch: pytest.MonkeyPatch):
    form = browser.FormTask(2**32 + 5, **FORM)
    opened, sent = [], []
    page: Any = SimpleNamespace(goto=opened.append, evaluate=lambda _: bool(sent))
    assert form.setup(page) == (form.form.goal, {})
    address = opened[0].rpartition("/")[2]
    assert opened == [form._url]
    assert form.validate(page, []) == (0.0, False, "", {})
    sent.append(True)
    monkeypatch.setattr(browser, "PATIENCE", 0.01)
    with pytest.raises(TimeoutError, match="did not arrive"):
        form.validate(page, [])
    form._sheet.sent = {"press": form.form.press}
    form._sheet.arrived.set()
    assert form.validate(page, []) == (1 / 3, True, "", {})
    assert any(path.endswith(address) for path in pages.pages().sheets)
    form.teardown()
    assert not any(path.endswith(address) for path in pages.pages().sheets)


class Session:
    """Keeps what it was sent, and answers in turn."""

    def __init__(self, *replies: Reply):
        self.replies = list(replies)
        self.sent: list[dict[str, Any]] = []

    def reset(self, **given: Any) -> Reply:
        self.sent.append(given)
        return self.replies.pop(0)

    def step(self, action: dict[str, Any]) -> Reply:
        self.sent.append(action)
        return self.replies.pop(0)


def page(*lines: str, done: bool = False, reward: float = 0.0, error: str = "") -> Reply:
    seen = {"text": "\n".join(lines), "goal": "Press Send.", "error": error, "last_action_error": bool(error)}
    return Reply(seen, reward, done)


def test_a_tool_answers_with_what_is_new_on_the_page_with_what_was_wrong_or_with_the_end():
    session: Any = Session(
        page("[5] textbox", "[6] button"),
        page("[5] textbox value='x'", "[6] button"),
        page("[5] textbox value='x'", "[6] button"),
        page("[6] button", error="no option"),
        page(done=True, reward=0.5),
    )
    player: Any = Environment(Settings(**FORM), session)  # type: ignore[arg-type]
    assert player.reset(seed=3, other=1) == "Press Send.\n\n[5] textbox\n[6] button"
    assert player.fill("[5]", "it's") == "[5] textbox value='x'"
    assert player.fill(5, 'a"\n') == "Nothing changed."
    with pytest.raises(ValueError, match="no option"):
        player.select_option("6", "red")
    assert (player.reward, player.done) == (0.0, False)
    assert player.click(" [6] ") == "OK."
    assert (player.reward, player.done, player.correct) == (0.5, True, "Press Send.")
    assert session.sent == [
        {"seed": 3, "task_name": "form"} | FORM,
        {"action_str": "fill('5', \"it's\")"},
        {"action_str": "fill('5', 'a\"\\n')"},
        {"action_str": "select_option('6', 'red')"},
        {"action_str": "click('6')"},
    ]


@pytest.mark.parametrize("bid", ["Send", "-1", "100000", ""])
def test_what_is_no_bid_is_not_sent(bid: str):
    session: Any = Session(page("[5] textbox"))
    player = Environment(Settings(**FORM), session)  # type: ignore[arg-type]
    player.reset(seed=3)
    with pytest.raises(ValueError, match="bid must be a whole number"):
        player.click(bid)
    assert len(session.sent) == 1


def test_the_turns_are_one_for_each_thing_to_do_and_two_to_spare():
    assert Environment(Settings(fields=3, choices=2), None).max_turns == 3 + 2 + 1 + 2
