"""A real browser for the tests that look at a page: the system's Chromium or Chrome, or Playwright's own."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser; without one the test is skipped, but not where CI runs it."""
    from playwright.sync_api import Error, sync_playwright

    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    with sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except Error as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no browser here (apt-get install chromium, or playwright install chromium): {error}")
        yield opened
        opened.close()


class Look:
    """What a browser made of a page at one width.

    Attributes:
        overflow: Pixels by which the page is wider than the window.
        cut: Texts of elements that reach beyond the window and cannot be scrolled to.
        requests: Addresses that the page asked for beyond itself.
        broken: Pictures that did not load.
        errors: What the console said.
    """

    def __init__(self, browser: Any, file: Path, width: int, media: str = "screen"):
        page = browser.new_page(viewport={"width": width, "height": 900})
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self._note(request.url, file))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(file.as_uri())
        page.emulate_media(media=media)
        self.overflow: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        self.broken: int = page.evaluate("[...document.images].filter(image => !image.naturalWidth).length")
        self.images: int = page.evaluate("document.images.length")
        self.scripts: int = page.evaluate("document.scripts.length")
        self.text: str = page.evaluate("document.body.innerText")
        self.headings: list[str] = page.evaluate("[...document.querySelectorAll('h2')].map(each => each.innerText)")
        self.cut: list[str] = page.evaluate(
            """[...document.body.querySelectorAll('*')].filter(each =>
                 each.getBoundingClientRect().right > innerWidth + 1
                 && !(getComputedStyle(each.closest('.scroll') || each).overflowX === 'auto' && each.closest('.scroll'))
               ).map(each => each.tagName + ': ' + each.innerText.slice(0, 60))"""
        )
        self.smallest_text: float = page.evaluate(
            """Math.min(...[...document.body.querySelectorAll('p, td, th, code')]
                 .map(each => parseFloat(getComputedStyle(each).fontSize)))"""
        )
        page.close()

    def _note(self, url: str, file: Path) -> None:
        if url != file.as_uri() and not url.startswith("data:"):
            self.requests.append(url)


def printed(browser: Any, file: Path, to: Path) -> Path:
    """The page on A4 paper, as PDF."""
    page = browser.new_page()
    page.goto(file.as_uri())
    page.pdf(path=str(to), prefer_css_page_size=True)
    page.close()
    return to
