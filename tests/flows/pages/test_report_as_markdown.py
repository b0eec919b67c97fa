"""The brief of a run as Markdown, for terminals, repositories and Prefect."""

from pathlib import Path

import pytest

from apprentice.flows.pages.report_page import as_markdown_page, first_screen
from apprentice.tasks.analysis.comparison import compare_all
from apprentice.tasks.judgement.samples import side_by_side
from apprentice.tasks.reporting.safe_text import code, fenced, markdown_table, one_line, visible
from apprentice.tasks.statistics.rates import with_intervals
from tests.flows.pages.hostile_report import held_out, page_of, report
from tests.tasks.evaluations import episode

RIGHT = {"base": 0, "sft": 10, "control": 28, "grpo": 25}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A brief with every section, of a model that says the worst things."""
    return as_markdown_page(report(tmp_path_factory.mktemp("page")))


def test_the_page_begins_with_the_outcome_the_decision_and_its_reason(text: str):
    first = first_screen(text)
    assert "**Not promoted: GRPO answers 80.0% of 30 unseen questions (62.7% to 90.5%), above the floor" in first
    assert "GRPO paid: +30.0 pp over SFT (" in first
    assert "Change first: `grpo.learning_rate: a third`." in first
    assert "| Teacher, as it taught | 90.0% (" in first
    assert "Cost: 0.5000 USD" in first


def test_the_brief_ends_with_a_link_to_the_page(text: str):
    assert text.rstrip().endswith("[report.html](report.html) has every episode, slices, curves, costs and lineage.")


def test_no_price_is_not_a_price_of_nothing(tmp_path: Path):
    data = report(tmp_path)
    assert "0.5000 USD at the recipe's prices" in as_markdown_page(data)
    data["collect"]["cost_usd"] = None
    data["stages"][0]["counts"] |= {"cost_usd": 0.0}
    brief = as_markdown_page(data)
    assert "no prices given (teacher.prices)" in brief
    assert "USD" not in brief


def test_questions_on_which_the_environment_broke_are_told_beside_the_rates(tmp_path: Path):
    broken = "The environment broke on episodes: 0 of base, 2 of sft, 1 of grpo."
    text = as_markdown_page(report(tmp_path) | {"broken": broken})
    assert f"> {broken}" in text.partition("## What was learned")[2].partition("## The gate")[0]
    assert "The environment broke" not in as_markdown_page(report(tmp_path) | {"broken": ""})


def test_a_regression_evaluation_that_was_at_0_is_said_to_show_nothing(tmp_path: Path):
    text = as_markdown_page(report(tmp_path))
    assert "Right on none before: sums." in text
    assert "A rate of 0% cannot fall, so such a regression evaluation shows nothing." in text


def test_the_page_says_whether_grpo_beats_sft_at_its_best_and_what_that_took(tmp_path: Path):
    data = report(tmp_path)
    held_out = {name: [episode(n, float(n < right)) for n in range(30)] for name, right in RIGHT.items()}
    data |= {"models": {name: with_intervals(records) for name, records in held_out.items()}}
    data |= compare_all(held_out, {}) | {"side_by_side": side_by_side(held_out)}
    data["effort"]["seconds"] |= {"SFT to its best": 95.0}
    learned = as_markdown_page(data).partition("## The gate")[0]
    assert "| SFT to its best | 30 |" in learned
    assert "| SFT to its best | grpo | -10.0 pp | " in learned
    assert "Training took 10 s of SFT, 290 s of GRPO, 95 s of SFT to its best." in learned
    assert "GRPO played 35,840 rollouts with 430,000 tokens" in learned
    cached = data | {"effort": data["effort"] | {"seconds": {}}}
    assert "Training took" not in as_markdown_page(cached)


def test_the_brief_of_a_run_that_left_something_out_has_no_chapter_for_it(tmp_path: Path):
    out = dict.fromkeys(("grpo", "collect", "lengths", "teacher", "played_by", "probe"))
    text = as_markdown_page(report(tmp_path) | out | {"completions": [], "curriculum": {}, "guards": []})
    for absent in ("not to be forgotten", "The teacher", "GRPO played", "None"):
        assert absent not in text, absent
    assert "## The gate" in text


def test_a_round_lists_those_before_it_and_counts_the_gates(tmp_path: Path):
    rounds = [{"round": "0", "promoted": "yes"}, {"round": "1", "promoted": "no"}]
    text = as_markdown_page(report(tmp_path) | {"rounds": rounds})
    assert "2 gates so far" in text
    assert "| 1 | no |" in text


def test_text_is_never_markup():
    assert code("a`b") == "``a`b``"
    assert code("`a") == "`` `a ``"
    assert code("two\nlines") == "`two lines`"
    assert code("") == "(nothing)"
    assert fenced("```\nx") == "````text\n```\nx\n````"
    assert markdown_table([{"a": "x|y\nz"}]) == "| a |\n| --- |\n| x\\|y z |"


def test_what_is_invisible_is_written_out():
    text = "4\x1b[2J2\u202e é 漢\tx\ny"
    assert visible(text) == "4\\x1b[2J2\\u202e é 漢\\tx\ny"
    assert one_line(text) == "4\\x1b[2J2\\u202e é 漢 x y"
    assert "\x1b" not in code(text) + fenced(text)


def test_every_paragraph_is_one_line_because_prefect_shows_each_line_as_a_paragraph(text: str):
    from markdown_it import MarkdownIt

    shown = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in shown for child in token.children or []]
    assert any(child.type == "text" for child in inline)
    assert [token.content for token in shown if any(child.type == "softbreak" for child in token.children or [])] == []


def test_files_for_llama_cpp_stand_beside_their_checkpoint_once_there_are_some(tmp_path: Path):
    rows = [{"form": "checkpoint", "accuracy": "80.0%"}, {"form": "q4_k_m", "accuracy": "61.0%"}]
    data = report(tmp_path) | {"exported": rows}
    assert "## Files for llama.cpp\n\n| form | accuracy |" in as_markdown_page(data)
    assert "| q4_k_m | 61.0% |" in as_markdown_page(data)
    assert "Files for llama.cpp" not in as_markdown_page(report(tmp_path))
    page = page_of(tmp_path, data, held_out()).read_text()
    assert '<table id="exported-table">' in page
    assert '<th scope="row">q4_k_m</th><td>61.0%</td>' in page
