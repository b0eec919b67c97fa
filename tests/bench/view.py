"""`apprentice view` over many episodes: seconds to the first page, a filter, a search, a transcript, and its memory.

In: `--episodes`. Out: one line of JSON; seconds, and MB of the server's resident set before and after. The page is a
real browser's. The rollouts are one of a kind in number and length, repeated under other seeds.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Rollouts
from tests.browser import NAMES
from tests.flows.pages.hostile_report import rollout

KEY = "0123456789abcdef0123"
COUNTS = ("failed", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=100_000)
    episodes = parser.parse_args().episodes
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(Path(folder) / "artifacts", "bench")
        with store.staging() as out:
            with (out / "rollouts.jsonl").open("wb") as file:
                file.writelines(rollout(number).line() for number in range(episodes))
            size = (out / "rollouts.jsonl").stat().st_size
            counts = dict.fromkeys(COUNTS, 0) | {"episodes": episodes, "cost_usd": 0.0}
            store.publish(Rollouts, KEY, out, counts, {"stage": "bench"})
        command = [str(Path(sys.executable).parent / "apprentice"), "view", KEY, "--store", str(store.root)]
        began = time.perf_counter()
        server = subprocess.Popen([*command, "--no-browser"], stdout=subprocess.PIPE, text=True, env=os.environ)
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = {"episodes": episodes, "file_mb": round(size / 1e6), "start_s": _since(began)}
            url = next(word.rstrip(";") for word in line.split() if word.startswith("http"))
            print(json.dumps(found | _look(url, episodes, psutil.Process(server.pid))))
        finally:
            server.terminate()
            server.wait()


def _look(url: str, episodes: int, server: psutil.Process) -> dict[str, float]:
    """What a reader waits for, one after the other."""
    from playwright.sync_api import expect, sync_playwright

    path = next(filter(None, map(shutil.which, NAMES)), None)
    found: dict[str, float] = {"memory_before_mb": _megabytes(server)}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.set_default_timeout(120_000)
        expect.set_options(timeout=120_000)
        status = tab.locator(".found")
        began = time.perf_counter()
        tab.goto(url, wait_until="commit")
        tab.locator(".episodes tbody tr").first.wait_for()
        found["first_page_s"] = _since(began)
        expect(status).to_have_text(f"{episodes:,} of {episodes:,} episodes")
        found["all_rows_s"] = _since(began)
        began = time.perf_counter()
        tab.locator("select[name=kind]").select_option("wrong answer")
        expect(status).to_contain_text("1 of ")
        found["filter_s"] = _since(began)
        began = time.perf_counter()
        tab.locator(".episodes tbody button").first.click()
        tab.locator("dialog .turn").first.wait_for()
        found["transcript_s"] = _since(began)
        tab.keyboard.press("Escape")
        tab.get_by_role("button", name="Clear").click()
        began = time.perf_counter()
        tab.locator("input[name=text]").fill(f"Question {episodes - 1}?")
        tab.locator("input[name=text]").press("Enter")
        expect(status).to_contain_text(f"1 of {episodes:,}")
        found["search_s"] = _since(began)
        browser.close()
    return found | {"memory_after_mb": _megabytes(server)}


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 2)


def _megabytes(server: psutil.Process) -> float:
    return round(server.memory_info().rss / 2**20)


if __name__ == "__main__":
    main()
