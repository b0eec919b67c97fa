"""A form as a BrowserGym task: any of BrowserGym's own environments can run it, too.

In: seed, and what the form consists of. Out: goal and reward, by BrowserGym's interface.
"""

from typing import Any

from browsergym.core.task import AbstractBrowserTask
from playwright.sync_api import Page

from .forms import draw
from .pages import pages

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
