"""Pictures of a report's page: `make pictures NAME=page`, of the newest run in runs/, or of RUN=runs/NAME.

In: a run's folder. Out: docs/page*.png. What a picture must show is asserted before it is taken.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from apprentice.flows.finished_runs import LAST, run_named
from apprentice.tasks.reporting.errors import Stop
from tests.browser import NAMES
from tests.e2e.cluster import ROOT

DOCS = ROOT / "docs"
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def take_page(browser: Browser, file: Path) -> None:
    """Takes the page on a desk in light and dark, on a phone, its episodes, and one of them."""
    with_table = "#episodes?model=GRPO&asked=held+out&right=false"
    for name, address, settings in (
        ("page", "", {"viewport": DESK, "color_scheme": "light"}),
        ("page-dark", "", {"viewport": DESK, "color_scheme": "dark"}),
        ("page-phone", "", {"viewport": PHONE, "color_scheme": "light", "device_scale_factor": 2}),
        ("page-episodes", with_table, {"viewport": DESK, "color_scheme": "light"}),
        ("page-episode", with_table, {"viewport": DESK, "color_scheme": "light"}),
    ):
        tab = browser.new_page(**settings)  # type: ignore[arg-type]
        tab.goto(file.absolute().as_uri() + address)
        expect(tab.locator("h1")).to_contain_text("unseen questions")
        expect(tab.locator(".found")).to_contain_text("episodes")
        if name == "page-episodes":
            _scroll(tab, "#played")
        if name == "page-episode":
            tab.locator(".episodes tbody button").first.click()
            expect(tab.get_by_role("dialog")).to_be_visible()
        tab.screenshot(path=str(DOCS / f"{name}.png"))
        tab.close()
        print(f"docs/{name}.png", flush=True)


def _scroll(tab: Page, to: str) -> None:
    tab.evaluate("to => document.querySelector(to).scrollIntoView()", to)


def main(given: list[str]) -> None:
    try:
        run = run_named(given[0] if given else LAST, ROOT / "runs")
    except Stop as stop:
        sys.exit(f"{stop}\n`make run` makes one.")
    path = next(found for name in NAMES if (found := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        take_page(browser, run.folder / "report.html")


if __name__ == "__main__":
    main(sys.argv[1:])
