"""What the completions of a group begin with is computed once, and every weight's gradient is TRL's."""

from typing import Any, NamedTuple

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from apprentice.tasks.training.shared_prompts import forward_shared

TOOLS = list(range(1, 41))
"""Tokens that all prompts begin with."""
CALL = list(range(50, 70))
"""What a call of a tool begins with."""
END = [70, 71, 72]
LONG = list(range(80, 120))
"""A question long enough to be computed once for its group."""


class Given(NamedTuple):
    prompts: list[list[int]]
    completions: list[list[int]]
    computed: list[tuple[int, int]]
    """Rows and columns of the passes: what all begin with, what groups do, completions."""


def calls(*answers: list[int]) -> list[list[int]]:
    return [[*CALL, *answer, *END] for answer in answers]


CASES = {
    # the tree: what is left of the question, the call, a path for each answer; no node for the last token of a row
    "answers": Given([[*TOOLS, 45]] * 3, calls([7], [8], [9]), [(1, 40), (1, 1 + 20 + 3 * 3)]),
    "some of them equal": Given([[*TOOLS, 45]] * 4, calls([7], [8], [7], [7]), [(1, 40), (1, 1 + 20 + 2 * 3)]),
    "one that begins another": Given([[*TOOLS, 45]] * 2, [[*CALL, 7], [*CALL, 7, 8]], [(1, 40), (1, 1 + 20 + 1)]),
    "groups of different sizes, mixed up": Given(
        [[*TOOLS, 45], [*TOOLS, 46, 47], [*TOOLS, 45], [*TOOLS, 46, 47], [*TOOLS, 46, 47]],
        calls([7], [8], [7, 7], [8], [9, 9]),
        [(1, 40), (2, 2 + 20 + 3 + 4)],
    ),
    "long questions": Given(
        [[*TOOLS, *LONG, 1]] * 2 + [[*TOOLS, 9, *LONG, 2]] * 2,
        calls([7], [8], [7], [7, 7]),
        [(1, 40), (2, 41), (2, 1 + 20 + 2 * 3)],
    ),
    "nothing alike": Given([[*TOOLS, 45]] * 2, [[7, *CALL], [8, *CALL]], [(1, 40), (2, 22)]),
    "an empty one": Given([[*TOOLS, 45]] * 3, [*calls([7], [7]), []], [(1, 40), (1, 1 + 20 + 3)]),
    "only empty ones": Given([[*TOOLS, 45]] * 2, [[], []], [(1, 40), (2, 2)]),
}


def model_of() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=130, initializer_range=0.3, **sizes, **heads))
    add_fused_lm_head(model, temperature=0.9, outputs=("log_probs", "entropy"))
    return model


def padded(given: Given) -> tuple[dict[str, Any], int]:
    """A batch as TRL has it, and the columns of its completions."""
    before, after = (max(1, *map(len, each)) for each in (given.prompts, given.completions))
    ids = torch.zeros(len(given.prompts), before + after, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(zip(given.prompts, given.completions, strict=True)):
        places = slice(before - len(prompt), before + len(completion))
        ids[row, places], mask[row, places] = torch.tensor([*prompt, *completion]), 1
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :before] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}, after


def learned(model: Any, forward: Any, batch: dict[str, Any], columns: int) -> tuple[Any, Any, dict[str, Any]]:
    """Log-probabilities, entropy, and the gradients of a loss that weighs each token differently."""
    model.zero_grad()
    out = forward(**batch, fused_lm_head=True)
    logps, entropy = (each[:, -columns:] for each in (out.log_probs, out.entropy))
    weights = torch.linspace(-1.0, 2.0, logps.numel()).reshape(logps.shape)
    (weights * (logps + 0.1 * entropy)).sum().backward()
    return logps.detach(), entropy.detach(), {name: each.grad.clone() for name, each in model.named_parameters()}


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_entropy_and_gradients_are_those_of_whole_rows(name: str):
    given, model = CASES[name], model_of()
    batch, columns = padded(given)
    plain = learned(model, model, batch, columns)
    computed: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(
        lambda _, __, named: computed.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    shared = learned(model, forward_shared(model, columns), batch, columns)
    assert computed == given.computed
    for each in (0, 1):
        torch.testing.assert_close(shared[each], plain[each], rtol=1e-5, atol=1e-5)
    for weight, gradient in plain[2].items():
        difference = (shared[2][weight] - gradient).norm() / gradient.norm().clamp(min=1e-6)
        assert difference < 1e-5, weight
