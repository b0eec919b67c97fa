"""The filter keeps what is right, well formed and not examined, and counts every cause."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any
from unicodedata import normalize

import pytest
from markdown_it import MarkdownIt

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.tools import tools_text
from apprentice.tasks import filter as stage
from apprentice.tasks.analysis.outcomes import why_dropped
from apprentice.tasks.artifacts.types import Questions, Rollouts
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.filter import as_samples, filter_rollouts
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from tests.tasks.evaluations import published

EVALUATION_TEXTS = {"held out"}


def episode(
    task: EnvironmentSpec,
    reward: float | None = 1.0,
    question: str = "seen",
    failed_at: str = "",
    **turn: Any,
) -> dict:
    arguments = turn.pop("arguments", '{"answer": "-5"}')
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "answer", "arguments": arguments}}],
    }
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": question}, said | turn]
    return {"messages": messages, "tools": tools_text(task.make().tools), "reward": reward, "failed_at": failed_at}


def test_a_right_and_clean_episode_is_kept(chain_sum: EnvironmentSpec):
    assert why_dropped(episode(chain_sum), EVALUATION_TEXTS) is None


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"reward": 0.33}, "wrong answer"),
        (
            {"reward": None, "failed_at": "teacher"},
            "failed at the teacher",
        ),
        ({"tool_calls": None}, "no tool call"),
        ({"arguments": json.dumps({"answer": 5})}, "arguments off the schema"),
        ({"content": "Let me think: 2 + 3 is 5."}, "leaked reasoning text"),
        ({"content": "<think>2 + 3</think>"}, "leaked reasoning text"),
        ({"content": "<think time=3>2 + 3"}, "leaked reasoning text"),
        ({"content": "I hand it in with the tool."}, None),
        ({"question": "held out"}, "stands in the evaluation set"),
    ],
)
def test_each_cause_is_named(chain_sum: EnvironmentSpec, given: dict, cause: str | None):
    assert why_dropped(episode(chain_sum, **given), EVALUATION_TEXTS) == cause


def question_line(text: str, purpose: str = "evaluate", used: bool = True) -> str:
    return json.dumps({"purpose": purpose, "seed": 1, "question": text, "used": used}) + "\n"


@pytest.fixture
def filtered(context: StageContext, chain_sum: EnvironmentSpec) -> Callable[..., tuple[dict, list[str]]]:
    """The stage's counts, and the questions that it kept."""

    def run(rows: str, *episodes: dict) -> tuple[dict, list[str]]:
        store = context.run.store
        counts = dict(collect=0, grpo=0, evaluate=1, dropped_from_grpo=0)
        questions = published(store, Questions, "q" * 20, {"questions.jsonl": rows}, counts)
        named = [row | {"seed": seed, "environment": "reasoning_gym 1"} for seed, row in enumerate(episodes)]
        counts = dict.fromkeys(("failed", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"), 0)
        counts |= {"episodes": len(named), "cost_usd": 0}
        lines = "".join(json.dumps(row) + "\n" for row in named)
        rollouts = published(store, Rollouts, "r" * 20, {"rollouts.jsonl": lines}, counts)
        found = filter_rollouts.body(context, rollouts, questions)
        kept = (context.out / "kept.jsonl").read_text().splitlines()
        return found, [json.loads(line)["messages"][1]["content"] for line in kept]

    return run


def test_what_the_evaluation_asks_is_kept_from_sft_in_whatever_case_and_spacing(filtered, chain_sum: EnvironmentSpec):
    rows = (
        question_line("What is 1 + 1?")
        + question_line("What is 2 + 2?", used=False)
        + question_line("What is 3 + 3?", "grpo")
    )
    texts = ["what IS  1 + 1?", "What is 2 + 2?", "What is 3 + 3?"]
    found, kept = filtered(rows, *(episode(chain_sum, question=text) for text in texts))
    assert kept == texts[1:], "what an evaluation did not choose, and what GRPO asks, may be learned"
    assert found == {"episodes": 3, "kept": 2, "dropped": {"stands in the evaluation set": 1}}


@pytest.mark.parametrize(
    ("question", "seen", "dropped"),
    [
        ("Zähle bis drei!", normalize("NFD", "Zähle bis drei!"), True),
        (normalize("NFD", "Zähle bis drei!"), "Zähle bis drei!", True),
        ("17 + 4 =", "１７ + ４ =", True),
        ("17 + 4 =", "17\u00a0+\u200b 4 =", True),
        ("2⁵ =", "25 =", False),
    ],
)
def test_what_the_evaluation_asks_is_kept_from_sft_in_whatever_unicode_form(
    filtered, chain_sum: EnvironmentSpec, question: str, seen: str, dropped: bool
):
    found, _ = filtered(
        question_line(question), episode(chain_sum, question=seen), episode(chain_sum, question="Else?")
    )
    assert found["kept"] == 2 - dropped


def test_every_cause_is_counted_and_the_kept_lines_are_the_rollouts_own(filtered, chain_sum: EnvironmentSpec, context):
    found, kept = filtered(
        question_line("held out"),
        episode(chain_sum),
        episode(chain_sum, reward=0.99),
        episode(chain_sum, reward=0.5),
        episode(chain_sum, reward=None, failed_at="environment"),
    )
    assert (found["kept"], kept) == (1, ["seen"])
    assert found["dropped"] == {"failed at the environment": 1, "wrong answer": 2}
    assert "**Seed 0, reward 1.0**" in (context.out / "samples.md").read_text()


@pytest.mark.parametrize(
    ("mixed", "said"),
    [
        pytest.param({"one": Counter({True: 3, False: 1})}, [], id="one environment"),
        pytest.param(
            {"one": Counter({True: 3, False: 1}), "two": Counter({False: 2})},
            [("of one: kept", 3, "75.0%"), ("of two: kept", 0, "0.0%")],
            id="two",
        ),
    ],
)
def test_what_is_kept_of_each_environment_is_told_where_there_are_several(
    mixed: dict[str, Counter[bool]], said: list[tuple[str, int, str]], monkeypatch: pytest.MonkeyPatch
):
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(announce, "rows", lambda key, title, rows: shown.extend(rows))
    stage._announce(4, 3, Counter({"wrong answer": 1}), mixed)
    found = [tuple(row.values()) for row in shown]
    assert found == [("kept", 3, "75.0%"), ("dropped: wrong answer", 1, "25.0%"), *said]


def test_where_nothing_is_left_the_stage_says_why(filtered, chain_sum: EnvironmentSpec):
    with pytest.raises(Stop, match=r"kept none of the 2 episodes \(2 × wrong answer; rewards from 0 to 0\)"):
        filtered(question_line("held out"), episode(chain_sum, reward=0.0), episode(chain_sum, reward=0.0))


@pytest.mark.parametrize(
    "text", ["# Check\n1 + 1 = 2", "Sums:\n- 1\n- 2\n\n***\n<b>", "a\n```\n# b\n```\nc", "*1* **2**"]
)
def test_a_sample_shows_thoughts_and_texts_of_several_lines_as_they_are(chain_sum: EnvironmentSpec, text: str):
    thinks = episode(chain_sum, question=f"What is it?\n{text}", reasoning_content=text)
    tokens = MarkdownIt().parse(as_samples([thinks | {"seed": 7}]))
    assert [each.content.rstrip("\n") for each in tokens if each.type == "fence"] == [f"What is it?\n{text}", text]
    assert {each.type for each in tokens}.isdisjoint({"heading_open", "hr", "html_block"})
    assert sum(each.type == "list_item_open" for each in tokens) == 3
    assert [each.content for each in tokens if each.type == "inline"][-1] == '`answer({"answer": "-5"})`'


@pytest.mark.parametrize("asked", ["seen", "What\nis it?"])
def test_a_sample_without_thoughts_has_its_texts_as_they_are(chain_sum: EnvironmentSpec, asked: str):
    call = '`answer({"answer": "-5"})`'
    text = f"**Seed 7, reward 1.0**\n\n- *system*: s\n- *user*: {asked}\n- *assistant*: So: {call}\n"
    assert as_samples([episode(chain_sum, question=asked, content="So:") | {"seed": 7}]) == text
