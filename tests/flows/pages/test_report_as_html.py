"""What the HTML page holds, without a browser: chapters that are left out, what the policy allows, contamination."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from apprentice.flows.boxes import BOXES
from apprentice.flows.pages.report_page import as_report_page
from tests.flows.pages.hostile_report import ended, report

NO_EPISODES = '{"rows": []}'


def test_a_run_that_left_something_out_has_no_chapter_for_it(tmp_path: Path):
    out: dict[str, Any] = dict.fromkeys(("grpo", "collect", "lengths", "teacher", "played_by", "probe"))
    none = {"completions": [], "guards": [], "failures": [], "curriculum": {}}
    page = as_report_page(report(tmp_path) | out | none, NO_EPISODES, BOXES)
    text = re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)
    for absent in (
        "What became of",
        "The teacher against",
        "Regression evaluations:",
        "How hard GRPO",
        "Failures worth",
        "What the curriculum",
    ):
        assert absent not in text, absent
    assert ">None<" not in text
    assert "nothing was bought" in text


def test_a_curriculum_is_shown_as_what_it_asked_and_the_success_of_each_kind(tmp_path: Path):
    page = as_report_page(report(tmp_path), NO_EPISODES, BOXES)
    _, _, chapter = page.partition("What the curriculum asked")
    shares, rate = re.findall(r"<svg class=\"heat\".*?</svg>", chapter, flags=re.DOTALL)
    assert "<title>terms 3, steps 1 to 1: 33%</title>" in shares
    assert "<title>terms 2, steps 40 to 40: 100%</title>" in rate
    assert len(re.findall("<rect", shares)) == 3 * 40
    assert '"share of the questions":0.5' in chapter


def test_contamination_is_the_first_thing_that_is_said_and_nothing_is_called_unseen(tmp_path: Path):
    data = report(tmp_path)
    shared = {"clean": False, "shared_with_training": 9, "share": 0.3, "limit": 0.0}
    data |= {"contamination": data["contamination"] | shared, "comparisons": [], "both_ways": [], "guards": []}
    data |= {"ending": ended(data)}
    page = as_report_page(data, NO_EPISODES, BOXES)
    assert "questions that training has partly seen (62.7%" in page
    assert "<strong>Contaminated.</strong> Nothing was compared: training has seen 9 of the 30" in page
    assert 'id="differences"' not in page


@pytest.mark.parametrize(("upper", "named"), [(0.79, True), (0.81, False)])
def test_a_slice_is_the_weakest_only_where_its_interval_lies_below_all(tmp_path: Path, upper: float, named: bool):
    data = report(tmp_path)
    row = data["slices"][0] | {"models": {name: {"accuracy": 0.5, "ci": [0.3, upper]} for name in data["models"]}}
    page = as_report_page(data | {"slices": [row]}, NO_EPISODES, BOXES)
    assert ("Weakest: terms 0" in page) is named, "GRPO is right on 80%"


def test_only_the_pages_own_script_may_run_and_nothing_may_be_loaded(tmp_path: Path):
    page = as_report_page(report(tmp_path), NO_EPISODES, BOXES)
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy is not None
    assert f"script-src &#39;sha256-{digest}&#39;" in policy[1]
    assert "default-src &#39;none&#39;" in policy[1]
    assert "connect-src &#39;none&#39;" in policy[1]


def test_no_text_of_a_model_becomes_an_element(tmp_path: Path):
    page = as_report_page(report(tmp_path), NO_EPISODES, BOXES)
    found: list[str] = []

    class Elements(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append(tag)
            found.extend(name for name, _ in attrs if name.startswith("on"))

    Elements().feed(page)
    assert "img" not in found
    assert not [each for each in found if each.startswith("on")]
    assert "alert(1)" in page
