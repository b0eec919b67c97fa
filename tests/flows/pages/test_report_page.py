"""The report's page in a real browser: on a desk, on a phone, on paper; whatever a model said stays text."""

import json
from pathlib import Path
from typing import Any

import pytest

from apprentice.flows.pages.report_page import as_html_page, as_markdown_page
from apprentice.tasks.analysis.calibration import calibration
from apprentice.tasks.analysis.comparison import compare_all, with_intervals
from apprentice.tasks.analysis.slices import side_by_side, slices, worst
from apprentice.tasks.reporting.announce import StageRun
from apprentice.tasks.reporting.markdown import code, fenced, markdown_table
from apprentice.tasks.reporting.pictures import histogram
from tests.browser import Look, browser
from tests.tasks.examined import episode

assert browser  # a fixture

NASTY = "<script>alert(1)</script> `` | <img src=http://example.invalid/x.png> " + "unbreakable" * 30
RIGHT = {"base": 0, "sft": 10, "control": 28, "grpo": 25}
PHONE, DESK, A4 = 390, 1280, 794


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A page with every section, and a model that says the worst things."""
    folder = tmp_path_factory.mktemp("page")
    picture = histogram([10, 20, 30], 25, folder / "lengths.png")
    text = as_markdown_page(report(folder), f"- *user*: {NASTY}", dict.fromkeys(("GRPO", "SFT", "lengths"), picture))
    (folder / "report.md").write_text(text)
    (folder / "report.html").write_text(as_html_page(text, "toy <b>"))
    return folder / "report.html"


def report(folder: Path) -> dict[str, Any]:
    said = [{"role": "user", "content": NASTY}, {"role": "assistant", "content": NASTY}]
    held_out = {
        "base": [episode(n, 0.0, messages=said, valid=False, causes=["no tool call"]) for n in range(30)],
        "sft": [episode(n, float(n % 2), traits=json.dumps({"terms": n % 3})) for n in range(30)],
        "grpo": [episode(n, float(n % 5 > 0), messages=said, traits=json.dumps({"terms": n % 3})) for n in range(30)],
    }
    from apprentice.envs.catalog import EnvironmentSpec

    (folder / "rollouts.jsonl").write_text(
        json.dumps({"seed": 1, "messages": [], "reward": 1.0, "correct": "", "failed_at": ""}) + "\n"
    )
    chain_sum = EnvironmentSpec(name="reasoning_gym", settings={"dataset": "chain_sum"})
    guards = {"sums.base": held_out["base"], "sums.grpo": held_out["grpo"]}
    rule = {"rule": "accuracy better", "holds": False, "found": NASTY}
    return {
        "recipe": "toy",
        "seed": 0,
        "played_by": "toy-model at api.example.com",
        "decoding": "greedy",
        "models": {name: with_intervals(records) for name, records in held_out.items()},
        **compare_all(held_out, guards),
        "contamination": {
            "clean": True,
            "questions": 30,
            "shared_with_training": 0,
            "shared_seeds": 0,
            "shared_with_rollouts": 2,
            "learned_from": {"sft": 5, "grpo": 6},
        },
        "gate": {"promoted": False, "rival": "base", "rules": [rule]},
        "is_champion": False,
        "hub_in_reach": True,
        "by_these_rules": True,
        "slices": slices(held_out),
        "side_by_side": side_by_side(held_out),
        "failures": [record.model_dump() for record in worst(held_out)],
        "probe": probed(),
        "grpo": {
            "diagnosis": "flat",
            "advice": "More steps.",
            "ci": None,
            "reward_initial": 0.1,
            "reward_final": 0.2,
            "delta": 0.1,
        },
        "collect": {
            "kept": 9,
            "episodes": 10,
            "causes": {"wrong answer": 1},
            "prompt_tokens": 1000,
            "completion_tokens": 200,
            "cost_usd": 0.5,
        },
        "effort": {"seconds": {"SFT": 10.2, "GRPO": 290.0}, "rollouts": 35840, "tokens": 430000},
        "signals": {"SFT": [], "GRPO": ["Step 20: 93% of the groups scored all the same. Stop earlier."]},
        "completions": [
            {"step": 20, "seed": 1, "question": NASTY, "said": NASTY, "calls": [], "replies": [], "reward": 0.0},
            {"step": 20, "seed": 1, "question": "1 + 1 =", "said": "", "calls": [], "replies": [], "reward": None},
        ],
        "lengths": {"p50": 1, "p95": 2, "p99": 3, "longest": 4, "max_length": 8, "truncated": 0},
        "teacher": calibration(folder, chain_sum),
        "stages": [
            StageRun("collect", "ran", 1.0, "k" * 20, "Teacher", "cpu", "cpu-worker", 1, {"episodes": 60})._asdict(),
            StageRun("grpo", "ran", 9.0, "g" * 20, "GRPO", "a100", "gpu-1", 2, {"device_s": 8.5})._asdict(),
        ],
        "device": "a machine",
        "peak_memory_mb": 1234,
        "lineage": [
            {"repository": "local/toy-sft", "revision": "a" * 40, "stage": "sft", "inputs": {"kept": "b" * 40}}
        ],
        "seeds": {"collect": {"start": 0, "size": 60}},
        "versions": {"torch": "2"},
    }


def test_the_table_of_costs_says_what_there_is_to_say_in_lines(browser: Any, page: Path):
    for width in (PHONE, 800, DESK, 1440):
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tab.goto(page.as_uri())
        tall, wide = tab.evaluate(
            """() => {
              const costs = [...document.querySelectorAll('h2')].find(each => each.innerText === 'Costs');
              let scroll = costs.nextElementSibling;
              while (!scroll.matches('.scroll')) scroll = scroll.nextElementSibling;
              const rows = [...scroll.querySelectorAll('tbody tr')].map(each => each.getBoundingClientRect().height);
              return [Math.max(...rows), scroll.scrollWidth - scroll.clientWidth];
            }"""
        )
        tab.close()
        assert tall < (60 if width >= 800 else 100), f"at {width} px a stage has a few lines, and none a letter each"
        assert width < 800 or wide <= 0, f"at {width} px no column is cut off"


def test_columns_without_news_are_left_out_and_no_price_is_not_a_price_of_nothing(tmp_path: Path):
    told = report(tmp_path)
    text = as_markdown_page(told, "", {})
    assert "0.5000 USD at the recipe's prices" in text
    assert "| pool, worker | begun | episodes | device s | key |" in text
    told["collect"]["cost_usd"] = None
    told["stages"][0]["counts"] |= {"cost_usd": 0.0}
    costs = as_markdown_page(told, "", {}).partition("## Costs")[2]
    assert "no prices given (teacher.prices)" in costs
    assert "0.0000" not in costs
    assert "USD" not in costs


def test_questions_on_which_the_environment_broke_are_told_beside_the_rates(tmp_path: Path):
    broken = "The environment broke on episodes: 0 of base, 2 of sft, 1 of grpo."
    text = as_markdown_page(report(tmp_path) | {"broken": broken}, "", {})
    assert f"> {broken}" in text.partition("## What was learned")[2].partition("## The gate")[0]
    assert "The environment broke" not in as_markdown_page(report(tmp_path) | {"broken": ""}, "", {})


def test_a_guard_rail_that_was_at_0_is_said_to_show_nothing(tmp_path: Path):
    text = as_markdown_page(report(tmp_path), "", {})
    assert "Right on none before: sums. A rate of 0% cannot fall, so such a guard rail shows nothing." in text


def test_the_page_says_whether_grpo_beats_sft_at_its_best_and_what_that_took(tmp_path: Path):
    told = report(tmp_path)
    held_out = {name: [episode(n, float(n < right)) for n in range(30)] for name, right in RIGHT.items()}
    told |= {"models": {name: with_intervals(records) for name, records in held_out.items()}}
    told |= compare_all(held_out, {}) | {"side_by_side": side_by_side(held_out)}
    told["effort"]["seconds"] |= {"SFT to its best": 95.0}
    learned = as_markdown_page(told, "", {}).partition("## The gate")[0]
    assert "| SFT to its best | 30 |" in learned
    assert "**SFT + GRPO does not beat SFT to its best on the same rollouts: -10.0 pp (" in learned
    assert "Training took 10 s of SFT, 290 s of GRPO, 95 s of SFT to its best." in learned
    assert "GRPO played 35,840 rollouts with 430,000 tokens" in learned
    cached = told | {"effort": told["effort"] | {"seconds": {}}}
    assert "Training took" not in as_markdown_page(cached, "", {})


def probed() -> dict[str, Any]:
    rung = {"n": 48, "accuracy": 0.5, "ci": (0.36, 0.64), "format_compliance": 1.0, "mean_score": 0.6}
    rungs = [rung | {"reading": "right", "called": f"config {NASTY}"} for _ in range(3)]
    return {"rungs": rungs, "chosen": 1, "says": "GRPO trains on rung 2 of 3. **The task is right**."}


@pytest.mark.parametrize(("width", "media"), [(DESK, "screen"), (PHONE, "screen"), (A4, "print")])
def test_the_page_fits_and_needs_nothing_but_itself(browser: Any, page: Path, width: int, media: str):
    look = Look(browser, page, width, media)
    assert look.overflow <= 0
    assert look.cut == []
    assert (look.images, look.broken) == (3, 0)
    assert (look.asked, look.errors, look.scripts) == ([], [], 0)
    assert look.smallest_text >= 10.5
    assert look.headings == [
        "What was learned",
        "The gate",
        "What was not to be forgotten",
        "Where it is right",
        "The same questions, model by model",
        "The worst failures",
        "How hard GRPO's task was",
        "What GRPO's curves say",
        "What the model said while GRPO trained",
        "What was learned from",
        "The teacher against the environment",
        "Costs",
        "Lineage",
    ]


def test_what_a_model_says_is_shown_as_it_is_and_does_nothing(browser: Any, page: Path):
    text = Look(browser, page, DESK).text
    assert text.count("<script>alert(1)</script> `` | <img src=http://example.invalid/x.png>") >= 10


def test_on_paper_no_picture_and_no_table_row_is_cut(browser: Any, page: Path, tmp_path: Path):
    from tests.browser import printed

    pdf = printed(browser, page, tmp_path / "report.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert 2 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type /Page/") <= 30


def test_a_page_of_a_run_that_left_something_out_has_no_chapter_for_it(tmp_path: Path):
    out = dict.fromkeys(("grpo", "collect", "lengths", "teacher", "played_by", "probe"))
    text = as_markdown_page(report(tmp_path) | out | {"completions": []}, "", {})
    for absent in ("GRPO's curves", "What was learned from", "teacher", "GRPO played", "None"):
        assert absent not in text, absent
    assert "## Costs" in text


def test_a_round_lists_those_before_it_and_counts_the_gates(tmp_path: Path):
    rounds = [{"round": "0", "promoted": "yes"}, {"round": "1", "promoted": "no"}]
    text = as_markdown_page(report(tmp_path) | {"rounds": rounds}, "", {})
    assert "2 gates so far" in text
    assert "| 1 | no |" in text


def test_the_markdown_needs_no_other_file(page: Path):
    text = page.with_suffix(".md").read_text()
    assert "[GRPO]: data:image/png;base64," in text
    assert "](" not in text.replace("](http", "")


def test_text_is_never_markup():
    assert code("a`b") == "``a`b``"
    assert code("`a") == "`` `a ``"
    assert code("two\nlines") == "`two lines`"
    assert code("") == "(nothing)"
    assert fenced("```\nx") == "````text\n```\nx\n````"
    assert markdown_table([{"a": "x|y\nz"}]) == "| a |\n| --- |\n| x\\|y z |"


def test_every_paragraph_is_one_line_because_prefect_shows_each_line_as_a_paragraph(page: Path):
    from markdown_it import MarkdownIt

    shown = MarkdownIt("commonmark").enable("table").parse((page.parent / "report.md").read_text())
    inline = [child for token in shown for child in token.children or []]
    assert any(child.type == "text" for child in inline)
    assert [token.content for token in shown if any(child.type == "softbreak" for child in token.children or [])] == []
