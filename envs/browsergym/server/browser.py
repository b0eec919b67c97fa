"""Browsers that many sessions share: a few threads, each with a Playwright and a Chromium; a context for each session.

In: tasks and actions. Out: the page as text. BrowserGym's marks, tree and actions on contexts of our own.
Why not its BrowserEnv: it launches two browsers at every reset, one of them for a chat and always Playwright's own
build, keeps one Playwright for the process, which only one thread may use, and sleeps half a second at every step.
"""

import itertools
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from browsergym.core.constants import BROWSERGYM_ID_ATTRIBUTE
from browsergym.core.observation import _post_extract, _pre_extract, extract_merged_axtree
from browsergym.utils.obs import IGNORED_AXTREE_PROPERTIES, IGNORED_AXTREE_ROLES, flatten_axtree_to_str
from playwright.sync_api import Browser, BrowserContext, Error, Page, Playwright, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from .actions import act
from .pages import pages
from .task import FormTask

T = TypeVar("T")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""What a system's Chromium is called; without one, Playwright's own is used."""

FLAGS = ("--disable-gpu", "--disable-sync", "--disable-component-update", "--disable-background-networking")

UNSAID_ROLES = (*IGNORED_AXTREE_ROLES, "RootWebArea", "form", "MenuListPopup", "InlineTextBox", "StaticText")
UNSAID_PROPERTIES = (*IGNORED_AXTREE_PROPERTIES, "focused", "url", "hasPopup", "expanded", "selected")
"""These pages say everything in the names and values of what can be acted on."""


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
