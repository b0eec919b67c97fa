"""What a player can do, in BrowserGym's action language: click, fill, select_option, one call at a time.

In: an action such as fill('5', "O'Connor"). Out: it is done, or ValueError in words.
Why not BrowserGym's own three: they give up after half a second, which on a busy machine turns its slowness into the
player's mistake, and they wait that long for an option that there is not. No action leaves the page.
"""

import threading
from typing import Any

import playwright.sync_api
from browsergym.core.action.base import execute_python_code
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.core.action.utils import get_elem_by_bid
from pyparsing import ParseBaseException

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
