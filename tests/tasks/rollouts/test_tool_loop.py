"""The tool loop parses and checks equal turns once, and counts them for each rollout."""

from typing import Any

from apprentice.tasks.rollouts import rollout_modes, tool_loop
from tests.tasks.rollouts.test_rollout_modes import SEEDS, rolled_out


def test_a_group_is_rendered_once_and_its_equal_completions_are_parsed_once(chain_sum, server, tmp_path, monkeypatch):
    from trl import GRPOTrainer, chat_template_utils
    from trl.trainer import grpo_trainer

    rolled_out("environment_factory", chain_sum, server, tmp_path)  # what a process parses once is parsed here
    parsed, rendered = [], []
    parse, render = chat_template_utils.parse_response, GRPOTrainer._tokenize_prompts

    def parse_response(tokenizer: Any, ids: list[int], **given: Any) -> Any:
        parsed.append(ids)
        return parse(tokenizer, ids, **given)

    def tokenize_prompts(trainer: Any, prompts: list[Any]) -> Any:
        rendered.append(len(prompts))
        return render(trainer, prompts)

    monkeypatch.setattr(chat_template_utils, "parse_response", parse_response)
    monkeypatch.setattr(grpo_trainer, "parse_response", parse_response)
    monkeypatch.setattr(GRPOTrainer, "_tokenize_prompts", tokenize_prompts)
    rolled_out("environment_factory", chain_sum, server, tmp_path)
    assert rendered == [len(set(SEEDS))]
    assert len(parsed) == len(set(SEEDS))


def test_every_rollout_of_a_group_counts_its_calls_although_equal_ones_are_checked_once(
    chain_sum, server, tmp_path, monkeypatch
):

    played, checked, play = [], [], rollout_modes.play_turns

    def noting(*given: Any) -> Any:
        played.append(play(*given))
        return played[-1]

    def checks(message: dict[str, Any], tools: list[dict[str, Any]]) -> list[str]:
        checked.append(message)
        return ["off the schema"]

    monkeypatch.setattr(rollout_modes, "play_turns", noting)
    monkeypatch.setattr(tool_loop, "problems", checks)
    rolled_out("environment_factory", chain_sum, server, tmp_path)
    assert (played[0].calls, played[0].wrong_calls) == (len(SEEDS), len(SEEDS))
    assert len(checked) == len(set(SEEDS))
