"""Law 1 for every family of chat templates: SFT, GRPO and evaluation have the same ids, and calls are read back.

The tokenizers are of single bytes, with a family's template of the installed TRL. TRL's own trainers make the ids.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.episodes.rendering import (
    IGNORED,
    as_read,
    chat_format,
    labelled,
    parse,
    prompt_ids,
    row_ids,
    training_row,
)
from apprentice.tasks.models.tokenizer import DATE, prepare_tokenizer
from apprentice.tasks.training.template import REPLY, fault_of
from tests import students_page as families
from tests.students_page import TOOL, page, templates, toy_tokenizer
from tests.tasks.engine.test_snippets import snippet
from tests.tasks.family import Family as Run
from tests.tasks.test_one_prompt import grpo_rollouts, played, sft_dataset, tiny_model

assert played  # a fixture

QUICK = ("glm4moe", "llama3_2", "qwen2_5")
SLOW = ("gemma4_v2", "gemma4_v5", "gptoss", "lfm2_2_5_v2", "nemotron_3_nano", "qwen3_5_think", "qwen3_8", "qwen3_vl")
DONE = {"role": "assistant", "content": "Done."}
QUESTION = [{"role": "system", "content": "system"}, {"role": "user", "content": "user"}]


def made(family: str) -> Any:
    return prepare_tokenizer(toy_tokenizer(templates()[family]))


def called(arguments: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "answer", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.fixture(params=[*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in SLOW)])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return made(request.param)


def test_sft_grpo_and_evaluation_have_the_same_ids_and_the_environment_hears_the_call(
    tokenizer: Any, task: EnvironmentSpec, played: list[Any], tmp_path: Path, server: EnvironmentServer
):
    rollouts = grpo_rollouts(task, tokenizer, played, tmp_path, server)
    for episode, rollout in zip(played, rollouts, strict=True):
        row = sft_dataset(tokenizer, episode, tmp_path)
        concatenated = rollout.prompt_ids + rollout.completion_ids
        assert rollout.prompt_ids == prompt_ids(tokenizer, episode.messages[:2], episode.tools)
        assert row["input_ids"][: len(concatenated)] == concatenated
        assert row["learned"][: len(concatenated)] == [False] * len(rollout.prompt_ids) + rollout.learned
        assert rollout.reward == 1.0


def test_sft_learns_just_what_trls_own_loop_counts_as_completion(
    tokenizer: Any, task: EnvironmentSpec, played: list[Any], tmp_path: Path, server: EnvironmentServer
):
    """TRL's loop generates the closing turn as well."""
    rollouts = grpo_rollouts(task, tokenizer, played, tmp_path, server, own_loop=False)
    for episode, rollout in zip(played, rollouts, strict=True):
        row = sft_dataset(tokenizer, episode, tmp_path)
        learned = [token for token, counts in zip(row["input_ids"], row["learned"], strict=True) if counts]
        assert learned == [
            token for token, counts in zip(rollout.completion_ids, rollout.learned, strict=True) if counts
        ]


def test_the_form_of_the_teachers_arguments_makes_no_difference(tokenizer: Any):
    arguments = {"answer": "it's", "count": 7}
    rows = [training_row([*QUESTION, called(form)], [TOOL]) for form in (arguments, json.dumps(arguments))]
    assert row_ids(tokenizer, rows[0]) == row_ids(tokenizer, rows[1])
    assert r"\"" not in tokenizer.decode(row_ids(tokenizer, rows[0])).split("it")[-1], "not encoded twice"


def test_the_published_rows_load_into_trls_trainer_as_their_card_says(
    tokenizer: Any, chain_sum: EnvironmentSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from trl import SFTConfig, SFTTrainer
    from trl.chat_template_utils import has_generation_markers

    run = Run(LocalStore(tmp_path / "store", "toy"), tmp_path, chain_sum)
    folder = run.store.fetch(run.kept)
    names: dict[str, Any] = {}
    monkeypatch.chdir(folder)
    exec(snippet(run, run.kept), names)
    masks = has_generation_markers(
        tokenizer.chat_template
    )  # as the card says: Llama's and Gemma 4's templates have no loss mask
    args = SFTConfig(
        str(tmp_path), assistant_only_loss=masks, report_to="none", use_cpu=True, bf16=False, max_length=None
    )
    trainer = SFTTrainer(tiny_model(tokenizer), processing_class=tokenizer, train_dataset=names["rows"], args=args)
    [episode] = map(json.loads, (folder / "kept.jsonl").read_text().splitlines())
    row = training_row(episode["messages"], json.loads(episode["tools"]))
    rows: Any = trainer.train_dataset
    assert rows[0]["input_ids"] == row_ids(tokenizer, row | {"messages": row["messages"][:-1]})


def test_a_turn_read_back_has_no_token_of_its_end_in_its_text():
    tokenizer = made("glm4moe")
    prefix = prompt_ids(tokenizer, QUESTION, [TOOL])
    turn = row_ids(tokenizer, training_row([*QUESTION, called({"answer": "a", "count": 1})], [TOOL]))[len(prefix) :]
    end = chat_format(tokenizer).call_end
    assert end is not None
    turn = turn[: turn.index(end) + 1]
    assert tokenizer.decode(turn).endswith("<|observation|>")
    assert parse(tokenizer, turn, prefix, [TOOL])["content"] == ""


def test_a_prompt_has_no_date_of_today():
    text = made("gptoss").decode(prompt_ids(made("gptoss"), QUESTION, [TOOL]))
    assert f"Current date: {DATE}" in text
    assert re.findall(r"\d{4}-\d\d-\d\d", text) == [str(DATE)]


def test_where_trl_masks_as_well_both_masks_agree_on_what_the_model_writes():
    tokenizer = made("qwen2_5")
    row = training_row([*QUESTION, called({"answer": "a", "count": 1}), {"role": "tool", "content": REPLY}], [TOOL])
    ours = labelled(tokenizer, row)
    templated = tokenizer.apply_chat_template(
        as_read(tokenizer, row["messages"]), tools=[TOOL], return_dict=True, return_assistant_tokens_mask=True
    )
    assert templated["input_ids"] == ours["input_ids"]
    learned = [label != IGNORED for label in ours["labels"]]
    pairs = list(zip(ours["input_ids"], learned, templated["assistant_masks"], strict=True))
    assert all(mask for _, mine, mask in pairs if mine)
    # TRL also counts the line end between a generation prompt and a call
    assert tokenizer.decode([token for token, mine, mask in pairs if mask and not mine]).strip() == ""


# --- what is refused ------------------------------------------------------------------------------------------------

READS_TEXT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments }}}</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETS = READS_TEXT.replace(
    "{{ message.content }}", "{% if loop.last %}<think></think>{% endif %}{{ message.content }}"
)
OMITS = READS_TEXT.replace("{{ message.content }}", "{% if message.role != 'tool' %}{{ message.content }}{% endif %}")
RAISES = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + READS_TEXT


def own(template: str) -> Any:
    """A tokenizer with a template that TRL does not know, and Qwen's parser."""
    from trl.chat_template_utils import qwen3_template

    tokenizer = toy_tokenizer(template)
    tokenizer.response_template = qwen3_template
    return prepare_tokenizer(tokenizer)


def test_a_template_that_reads_text_only_gets_text():
    tokenizer = own(READS_TEXT)
    assert chat_format(tokenizer).arguments == {"text"}
    assert as_read(tokenizer, [called({"answer": "a"})]) == [called('{"answer": "a"}')]
    assert fault_of(tokenizer, [TOOL]) == ""


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        (FORGETS, "renders earlier turns differently"),
        (OMITS, "omits the tools' replies"),
        (RAISES, "fails on an episode with calls: no system role"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_with_the_reason(template: str, fault: str):
    assert fault in fault_of(own(template), [TOOL])


def test_a_tool_whose_arguments_are_read_otherwise_is_named():
    named = {"name": "answer", "parameters": {"type": "object", "properties": {"answer": {"enum": ["It's", "Its"]}}}}
    fault = fault_of(made("lfm2_2_5"), [{"type": "function", "function": named | {"description": "Answers."}}])
    assert "answer({'answer': \"It's\"})" in fault


def test_the_page_of_students_has_a_row_for_each_template_with_what_the_check_says(monkeypatch: pytest.MonkeyPatch):
    kinds = ("gptoss", "lfm2_2_5", "llama3_2", "nemotron_3_nano", "qwen3", "gemma", "deepseekv3")
    monkeypatch.setattr(families, "templates", lambda: {name: templates()[name] for name in kinds})
    *opening, usable, _, refused = page().split("\n\n")
    written = (Path(__file__).parent.parent.parent / "docs" / "students.md").read_text()
    assert written.startswith("\n\n".join(opening))
    assert len(usable.splitlines()) == 2 + 5
    assert len(refused.splitlines()) == 2 + 2
    assert set(usable.splitlines() + refused.splitlines()) <= set(written.splitlines())


@pytest.mark.long
def test_the_page_of_students_is_that_of_the_installed_trl():
    written = (Path(__file__).parent.parent.parent / "docs" / "students.md").read_text()
    assert written == page(), "TRL's chat templates or their check have changed: make docs"
