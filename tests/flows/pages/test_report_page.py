"""The report's page in a real browser: on a desk, a phone, paper; from every figure to its episodes; hostile text.

`make axe` fetches axe-core, with which the page is checked for readers who do not see it or use no mouse.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Look, browser, printed
from tests.flows.commands import ROOT, Ran
from tests.flows.pages.hostile_report import HOSTILE, NASTY, held_out, page_of, report
from tests.tasks.evaluations import episode

assert browser  # a fixture
pytestmark = pytest.mark.long

PHONE, DESK, A4 = 390, 1280, 794
AXE = ROOT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
BEGINS = "text => document.querySelector('.found').textContent.startsWith(text)"
HEADINGS = [
    "The run",
    "By how much",
    "What it gets wrong",
    "Episodes",
    "The training's curves",
    "Can it be trusted",
    "The gate",
    "Details",
    "What the words mean",
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every section, and models that say the worst things."""
    folder = tmp_path_factory.mktemp("page")
    return page_of(folder, report(folder), held_out())


@pytest.fixture
def tab(browser: Any, page: Path) -> Iterator[Any]:
    """The page, open; whatever it asks of the network, and whatever fails in it, is in `tab.odd`."""
    tab = open_page(browser, page)
    yield tab
    assert tab.odd == []
    tab.close()


def open_page(browser: Any, file: Path, unfolded: bool = True, **context: Any) -> Any:
    tab = browser.new_page(viewport={"width": DESK, "height": 900}, **context)
    tab.odd = []
    mine = file.as_uri()
    tab.on("request", lambda sent: None if sent.url.startswith((mine, "data:", "blob:")) else tab.odd.append(sent.url))
    tab.on("console", lambda message: tab.odd.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: tab.odd.append(str(error)))
    tab.goto(mine)
    if unfolded:
        tab.evaluate("() => document.querySelectorAll('details.part').forEach(each => { each.open = true; })")
    return tab


def found(tab: Any) -> str:
    return tab.locator(".found").inner_text()


def choose(tab: Any, name: str, value: str, expected: str) -> None:
    """Choose in a filter, and wait until the table says how many episodes fit."""
    from playwright.sync_api import expect

    tab.locator(f"select[name={name}]").select_option(value)
    expect(tab.locator(".found")).to_contain_text(expected)


@pytest.mark.parametrize(("width", "media"), [(DESK, "screen"), (1440, "screen"), (PHONE, "screen"), (A4, "print")])
def test_the_page_fits_and_needs_nothing_but_itself(browser: Any, page: Path, width: int, media: str):
    look = Look(browser, page, width, media)
    assert look.overflow <= 0
    assert look.cut == []
    assert (look.requests, look.errors, look.broken) == ([], [], 0)
    assert look.smallest_text >= 10.5
    assert look.headings == HEADINGS
    assert page.stat().st_size <= 2_000_000


def test_outcome_decision_reason_cost_and_duration_are_seen_without_scrolling(browser: Any, page: Path):
    tab = open_page(browser, page, unfolded=False)
    assert tab.evaluate("() => document.documentElement.scrollHeight") < 1800, "everything else is folded"
    seen = tab.evaluate(
        """() => [...document.querySelectorAll('h1, .rates th, .card, .fold dd, .fold li')]
             .map(each => [each.innerText, each.getBoundingClientRect().bottom])"""
    )
    text = "\n".join(words for words, bottom in seen if bottom <= 900)
    for wanted in (
        "Not promoted: GRPO answers 80.0% of 30 unseen questions (62.7% to 90.5%), above the floor of 45.0%",
        "Untrained student",
        "Teacher, as it taught",
        "GRPO paid: +30.0 pp over SFT",
        "Change first: grpo.learning_rate: a third",
        "0.5000 USD",
        "10 s on a machine",
        "GRPO won 12 that SFT had wrong, and lost 3 that it had right",
        "Wrong: 6 of 30: 6 wrong answer",
        "Regression evaluation sums: 0.0% before, 80.0% after",
    ):
        assert wanted in text, wanted


def test_a_figure_leads_to_its_episodes_and_on_to_a_transcript_in_two_clicks(tab: Any):
    from playwright.sync_api import expect

    figures = {
        "what was lost, at the top": (tab.locator(".glance a[href*='SFT~GRPO~lost']"), "3 of 100"),
        "what is wrong, at the top": (tab.locator(".glance a[href*='kind=']"), "6 of 100"),
        "a cell of two models": (tab.locator("td a[href*='SFT~GRPO~lost']"), "3 of 100"),
        "a kind of failure": (tab.locator("#wrong .grid table").first.get_by_role("link").first, "15 of 100"),
        "a slice": (tab.locator("#wrong .grid table").nth(1).get_by_role("link").last, "10 of 100"),
        "a model": (tab.locator("#models").get_by_role("link").last, "30 of 100"),
        "the teacher's": (tab.locator("ul.parts-of").get_by_role("link").first, "9 of 100"),
    }
    for what, (figure, expected) in figures.items():
        figure.click()
        expect(tab.locator(".found")).to_contain_text(expected)
        tab.locator(".episodes tbody button").first.click()
        expect(tab.get_by_role("dialog")).to_be_visible()
        models = tab.locator("dialog section").count()
        assert models == (1 if what == "the teacher's" else 3), f"{what}: every model is shown on that question"
        tab.keyboard.press("Escape")
        expect(tab.get_by_role("dialog")).to_be_hidden()


def test_every_filter_leaves_what_it_says_and_the_address_keeps_it(tab: Any):
    assert found(tab) == "100 of 100 episodes"
    choose(tab, "model", "SFT", "30 of 100")
    choose(tab, "right", "false", "15 of 100")
    choose(tab, "slice", "terms 0", "5 of 100")
    tab.reload()
    tab.locator(".episodes tbody tr").first.wait_for()
    assert found(tab) == "5 of 100 episodes"
    tab.get_by_role("button", name="Clear").click()
    choose(tab, "pair", "SFT~GRPO~lost", "3 of 100")
    choose(tab, "kind", "wrong answer", "3 of 100")
    tab.get_by_role("button", name="Clear").click()
    tab.locator("input[name=text]").fill("QUESTION 7?")
    tab.locator("input[name=text]").press("Enter")
    tab.wait_for_function(BEGINS, arg="2 of")


def test_an_episode_shows_its_tokens_and_the_parts_of_its_reward_where_they_are_known(tab: Any):
    choose(tab, "model", "GRPO", "30 of 100")
    tab.locator(".episodes tbody button").first.click()
    facts = tab.locator("dialog section dl").all_inner_texts()
    assert "greens" not in facts[0], "of the model whose record has none"
    lines = facts[2].split("\n")
    named = dict(zip(lines[::2], lines[1::2], strict=True))
    wanted = {"reward: correct": "1", "reward: greens": "0.4", "prompt tokens": "90", "completion tokens": "12"}
    assert named.items() >= wanted.items()


def test_a_column_sorts_up_and_down_by_the_keyboard(tab: Any):
    choose(tab, "model", "GRPO", "30 of 100")
    cells = tab.locator(".episodes tbody td:nth-child(7)")
    first = cells.first.inner_text()
    for expected in ("ascending", "descending"):
        tab.get_by_role("button", name="seed").press("Enter")
        tab.locator(f"th[aria-sort={expected}]").wait_for()
    assert (first, cells.first.inner_text()) == ("5000", "5029")


def test_the_table_begins_with_the_last_model_and_shows_where_its_questions_differ(browser: Any, tmp_path: Path):
    chats = [{"role": "user", "content": f"Spell this word backward: word{number}"} for number in range(3)]
    records = {
        model: [episode(number, 1.0, messages=[each]) for number, each in enumerate(chats)] for model in ("sft", "grpo")
    }
    tab = open_page(browser, page_of(tmp_path, report(tmp_path), records))
    rows = tab.locator(".episodes tbody tr")
    assert rows.locator("td:nth-child(2)").all_inner_texts()[:6] == ["GRPO"] * 3 + ["SFT"] * 3
    choose(tab, "asked", "held out", "6 of")
    assert rows.locator("button").all_inner_texts()[:3] == ["… word0", "… word1", "… word2"]
    rows.locator("button").first.click()
    assert "Spell this word backward: word0" in tab.get_by_role("dialog").inner_text()
    assert tab.odd == []


def test_what_models_say_is_shown_as_it_is_and_does_nothing(tab: Any):
    choose(tab, "model", "GRPO", "30 of 100")
    for number, said in enumerate(HOSTILE):
        tab.locator(".episodes tbody button").nth(number).click()
        turn = tab.locator("dialog section").last.locator("details[open] .turn").first
        text = turn.inner_text()
        for sign in "\x1b\x07\x00\u202e\u200b\u2028":
            assert sign not in text, "what does not print is written out"
        if "\x1b" in said:
            assert "\\x1b[31mred" in text
            assert "\\u202e" in text
        if "<|im_start|>" in said:
            marked = turn.locator(".odd").all_inner_texts()
            assert {"<|im_start|>", "<|im_end|>", "</s>", "<tool_call>", "[INST]", "<start_of_turn>"} <= set(marked)
        if len(said) > 10_000:
            assert len(text) < 5_000
            turn.get_by_role("button").click()
            assert len(turn.inner_text()) > 200_000
        assert tab.evaluate(
            "document.querySelector('dialog').scrollWidth <= document.querySelector('dialog').clientWidth"
        )
        tab.keyboard.press("Escape")
    assert tab.evaluate("[window.hacked, document.querySelectorAll('main img, main a[href^=javascript]').length]") == [
        None,
        0,
    ]
    assert NASTY[:60] in tab.inner_text("body")


def test_what_is_too_long_for_the_page_is_named_as_left_out(browser: Any, tmp_path: Path):
    whole = page_of(tmp_path, report(tmp_path), held_out()).stat().st_size
    file = page_of(tmp_path, report(tmp_path), held_out(), budget=20_000)
    assert file.stat().st_size < whole / 2
    tab = open_page(browser, file)
    choose(tab, "model", "GRPO", "30 of 100")
    assert tab.get_by_text("too long for this page: apprentice view KEY shows it").count() >= 1
    assert tab.odd == []


def test_tables_are_copied_and_saved_with_every_digit_of_the_report(browser: Any, page: Path, tmp_path: Path):
    data = report(tmp_path)
    tab = open_page(browser, page)
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Save models as CSV").click()
    download.value.save_as(tmp_path / "models.csv")
    rows = list(csv.DictReader((tmp_path / "models.csv").open()))
    assert [row["model"] for row in rows] == list(data["models"])
    for row, model in zip(rows, data["models"].values(), strict=True):
        given = [model["accuracy"], *model["ci"]["accuracy"]]
        assert [float(row[name]) for name in ("accuracy", "accuracy low", "accuracy high")] == pytest.approx(given)
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Save slices as CSV").click()
    download.value.save_as(tmp_path / "slices.csv")
    first = next(csv.DictReader((tmp_path / "slices.csv").open()))
    assert float(first["models.grpo.accuracy"]) == pytest.approx(data["slices"][0]["models"]["grpo"]["accuracy"])
    assert tab.odd == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(browser: Any, page: Path, scheme: str):
    if not AXE.exists():
        pytest.skip("axe-core is not here: make axe")
    tab = open_page(browser, page, color_scheme=scheme, bypass_csp=True)
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 22, 29)"
    )
    tab.add_script_tag(path=str(AXE))
    for shown in ("the page", "an episode"):
        if shown == "an episode":
            tab.locator(".episodes tbody button").first.click()
        ran = tab.evaluate("axe.run()")
        assert [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in ran["violations"]] == [], shown


def test_on_paper_no_picture_and_no_table_row_is_cut(browser: Any, page: Path, tmp_path: Path):
    pdf = printed(browser, page, tmp_path / "report.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert 2 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type /Page/") <= 30


@pytest.mark.parametrize("width", [PHONE, 800, DESK, 1440])
def test_the_table_of_stages_says_what_there_is_to_say_in_lines(browser: Any, page: Path, width: int):
    tab = browser.new_page(viewport={"width": width, "height": 900})
    tab.goto(page.as_uri())
    tall, wide = tab.evaluate(
        """() => {
          const scroll = document.querySelector('table#stages-table').closest('.scroll');
          const rows = [...scroll.querySelectorAll('tbody tr')].map(each => each.getBoundingClientRect().height);
          return [Math.max(...rows), scroll.scrollWidth - scroll.clientWidth];
        }"""
    )
    tab.close()
    assert tall < (60 if width >= 800 else 100), "a stage has a few lines, and none a letter each"
    assert width < 800 or wide <= 0, "no column is cut off"


def test_the_page_of_a_real_run_says_what_its_report_says(browser: Any, toy_run: Ran):
    file = toy_run.folder / "report.html"
    for width in (DESK, PHONE):
        look = Look(browser, file, width)
        assert (look.overflow, look.cut, look.requests, look.errors) == (0, [], [], [])
        assert look.headings == HEADINGS
    assert file.stat().st_size <= 2_000_000
    tab, data = open_page(browser, file), toy_run.report
    assert tab.get_by_text("What became of the teacher's 60 episodes").count() == 1
    for cause, number in data["collect"]["causes"].items():
        tab.get_by_role("link", name=f"{number} {cause}", exact=True).click()
        tab.wait_for_function(
            "text => document.querySelector('.found').textContent.startsWith(text)", arg=f"{number} of "
        )
    kinds = {row["kind"]: row["models"]["grpo"] for row in data["kinds_of_failure"]}
    for kind, number in kinds.items():
        tab.goto(f"{file.as_uri()}#episodes?model=GRPO&asked=held out&kind={kind}")
        tab.wait_for_function(
            "text => document.querySelector('.found').textContent.startsWith(text)", arg=f"{number} of "
        )
    boxes = tab.locator("svg.lying .name").all_text_contents()
    assert {"Teacher", "Filter", "SFT", "GRPO", "Verdict", "Gate", "Release"} <= set(boxes)
    assert json.loads(tab.locator("#episodes-data").text_content())["left_out"] == 0
    assert tab.odd == []
