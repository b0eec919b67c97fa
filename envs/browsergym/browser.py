"""Browsers that many sessions share: a few threads, each with a Playwright and a Chromium; a context for each session.

In: tasks and actions. Out: the page as text. BrowserGym's marks, tree and actions on contexts of our own.
Why not its BrowserEnv: it launches two browsers at every reset, one of them for a chat and always Playwright's own
build, keeps one Playwright for the process, which only one thread may use, and sleeps half a second at every step.
Why not BrowserGym's own three actions: they give up after half a second, which on a busy machine turns its slowness
into the player's mistake, and they wait that long for an option that there is not. No action leaves the page.
"""

import itertools
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import playwright.sync_api
from browsergym.core.action.base import execute_python_code
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.core.action.utils import get_elem_by_bid
from browsergym.core.constants import BROWSERGYM_ID_ATTRIBUTE
from browsergym.core.observation import _post_extract, _pre_extract, extract_merged_axtree
from browsergym.core.task import AbstractBrowserTask
from browsergym.utils.obs import IGNORED_AXTREE_PROPERTIES, IGNORED_AXTREE_ROLES, flatten_axtree_to_str
from playwright.sync_api import Browser, BrowserContext, Error, Page, Playwright, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from pyparsing import ParseBaseException

from .forms import draw
from .pages import pages

T = TypeVar("T")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""What a system's Chromium is called; without one, Playwright's own is used."""

FLAGS = ("--disable-gpu", "--disable-sync", "--disable-component-update", "--disable-background-networking")

UNSAID_ROLES = (*IGNORED_AXTREE_ROLES, "RootWebArea", "form", "MenuListPopup", "InlineTextBox", "StaticText")
UNSAID_PROPERTIES = (*IGNORED_AXTREE_PROPERTIES, "focused", "url", "hasPopup", "expanded", "selected")
"""These pages say everything in the names and values of what can be acted on."""


PATIENCE = 10.0
"""Seconds within which a form that was sent arrives."""


class FormTask(AbstractBrowserTask):
    """Fill in the form as asked, and press the button that is named."""

    @classmethod
    def get_task_id(cls) -> str:
        return "form"

    def __init__(self, seed: int, **form: Any):
        """Raises ValueError for a form that there is not."""
        super().__init__(seed % 2**32)  # numpy's, which nothing here uses
        self.slow_mo = 0
        self.form = draw(seed, **form)
        self._url, self._sheet = pages().add(self.form)

    def setup(self, page: Page) -> tuple[str, dict]:
        """Opens the page; returns the goal."""
        page.goto(self._url)
        return self.form.goal, {}

    def validate(self, page: Page, chat_messages: list[str]) -> tuple[float, bool, str, dict]:
        """The share that is right, once the form was sent. Raises TimeoutError where it was and does not arrive."""
        if not page.evaluate("document.forms[0]?.dataset.sent"):
            return 0.0, False, "", {}
        if not self._sheet.arrived.wait(PATIENCE):
            raise TimeoutError("the browser sent a form that did not arrive")
        return self.form.score(self._sheet.sent), True, "", {}

    def teardown(self) -> None:
        """Takes the page down."""
        pages().remove(self._url)


class BrowserLost(BaseException):
    """The browser died or hangs. No Exception: OpenEnv would send that to the player as the answer to his move. This
    costs the connection, and the client plays the episode again on a new one."""


class BrowserThread:
    """A thread with a Playwright and a Chromium, which is started when it is first needed, or when the last one died.

    Playwright's objects may be used in this thread only.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="browser")
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    def submit(self, work: Callable[..., T], *given: Any) -> "Future[T]":
        """Does it in the thread, when its turn has come."""
        return self._thread.submit(work, *given)

    def new_context(self) -> BrowserContext:
        """An empty one. In the thread. Raises ValueError where there is no Chromium."""
        if self._browser is None or not self._browser.is_connected():
            self._browser = self._launched()
        return self._browser.new_context()

    def _launched(self) -> Browser:
        if self._playwright is None:
            self._playwright = sync_playwright().start()
            self._playwright.selectors.set_test_id_attribute(BROWSERGYM_ID_ATTRIBUTE)
        path = next((found for name in NAMES if (found := shutil.which(name))), None)
        here = pages().host
        # whatever is not on our pages is asked of our pages, which refuse it; by itself Chromium exempts more than them
        fenced = (f"--proxy-server=http://{here}", f"--proxy-bypass-list=<-loopback>;{here}")
        try:
            return self._playwright.chromium.launch(executable_path=path, args=[*FLAGS, *fenced])
        except Error as error:
            raise ValueError(
                "no browser starts here: install one (apt-get install chromium, or playwright install chromium). "
                f"Playwright says: {said(error)}"
            ) from error


class Tab:
    """What one session sees: a page in a context of its own. Its methods run in the browser's thread."""

    def __init__(self, thread: BrowserThread):
        self._thread = thread
        self._context: BrowserContext | None = None
        self._page: Page | None = None
        self._task: FormTask | None = None

    def start(self, task: FormTask) -> tuple[str, str]:
        """The goal, and the page as text. Raises ValueError, BrowserLost."""
        self._leave_task()
        self._task = task
        try:
            if self._context is None or self._page is None:
                self._context = self._thread.new_context()
                self._page = self._context.new_page()
            goal, _ = task.setup(self._page)
            return goal, page_text(self._page)
        except Error as error:
            raise BrowserLost(said(error)) from error

    def act(self, action: str) -> tuple[str, str, float, bool]:
        """The page as text, what was wrong with the action, the reward, whether it is over. Raises BrowserLost."""
        assert self._page is not None
        assert self._task is not None
        wrong = ""
        try:
            try:
                act(self._page, action)
            except PlaywrightTimeout:  # nothing that a player does takes so long
                raise
            except (Error, ValueError) as error:  # where it is the browser that died, what follows tells
                wrong = said(error)
            reward, done, _, _ = self._task.validate(self._page, [])
            return ("" if done else page_text(self._page)), wrong, reward, done
        except (Error, TimeoutError) as error:
            raise BrowserLost(said(error)) from error

    def close(self) -> None:
        """Takes the page down and closes the context."""
        self._leave_task()
        context, self._context, self._page = self._context, None, None
        if context is not None:
            with suppress(Error):  # it went with its browser
                context.close()

    def _leave_task(self) -> None:
        if self._task is not None:
            self._task.teardown()
            self._task = None


def page_text(page: Page) -> str:
    """The accessibility tree, a line for each thing, with BrowserGym's bids."""
    _pre_extract(page)
    tree = extract_merged_axtree(page)
    _post_extract(page)
    return flatten_axtree_to_str(tree, ignored_roles=UNSAID_ROLES, ignored_properties=UNSAID_PROPERTIES)


def said(error: BaseException) -> str:
    """The first line; Playwright adds a log of its calls."""
    return str(error).partition("\n")[0]


_threads = itertools.cycle([BrowserThread() for _ in range(min(4, os.cpu_count() or 1))])
"""More than the cores gain nothing: Chromium's work is all computing."""


def next_thread() -> BrowserThread:
    """The browser of the next session: one after another."""
    return next(_threads)


page: Any = None  # BrowserGym runs the sources of these functions where it is the player's page

_parsing = threading.Lock()  # pyparsing's parsers are shared by all threads


def click(bid: str):
    """
    Click an element.

    Examples:
        click('12')
    """
    elem = get_elem_by_bid(page, str(bid))
    if not elem.is_visible():
        raise ValueError(f"Element {bid} cannot be clicked: it is not visible.")
    elem.click(timeout=10_000)


def fill(bid: str, value: str):
    """
    Write a text into a field; what it held is replaced.

    Examples:
        fill('12', 'example value')
    """
    elem = get_elem_by_bid(page, str(bid))
    if not elem.is_visible() or not elem.evaluate("each => each.matches('textarea, input')"):
        raise ValueError(f"Element {bid} is no text field.")
    elem.fill(str(value), timeout=10_000)


def select_option(bid: str, option: str):
    """
    Choose an option of a list by its text.

    Examples:
        select_option('12', 'blue')
    """
    elem = get_elem_by_bid(page, str(bid))
    options = elem.locator(":scope > option").all_text_contents()
    if str(option) not in options:
        raise ValueError(f"Element {bid} has no such option: {option}")
    elem.select_option(label=str(option), timeout=10_000)


ACTIONS = HighLevelActionSet(
    subsets=["custom"], custom_actions=[click, fill, select_option], multiaction=False, strict=True
)
del ACTIONS.action_set["noop"]  # always there, and would wait for as long as it is told


def act(on: playwright.sync_api.Page, action: str) -> None:
    """Does it. Raises ValueError where it cannot be done, in words for the player; Playwright's TimeoutError."""
    try:
        with _parsing:
            code = ACTIONS.to_python_code(action)
    except (ParseBaseException, NameError, ValueError):
        raise ValueError(
            "An action is one call: click('bid'), fill('bid', 'text') or select_option('bid', 'option')."
        ) from None
    try:
        execute_python_code(code, on, _no_chat, _no_chat)
    except TypeError as error:  # of the call: too many arguments, or too few
        raise ValueError(str(error)) from error


def _no_chat(text: str) -> None:
    """BrowserGym asks for a way to talk to a user; no action here does."""
