"""Samples completions as transformers' `generate` does, in less time on a CPU.

In: prompts, a cache that holds what all of them begin with, `generate`'s settings. Out: prompts and completions.

Equal prompts, as those of a group, are computed once; rows leave the batch soon after they end; and a token is drawn by
one random number a row, where `torch.multinomial` draws one for every token of the vocabulary. So the samples have the
same distribution, and not the same random numbers.
"""

from typing import Any

import torch
from transformers.generation.configuration_utils import GenerationMode

LEAVE = 8
"""One in so many rows has to have ended before the others are copied into a smaller batch."""


def one_by_one(generation_config: Any) -> bool:
    """Whether each row takes one token after another, and only token ids are wanted: no beams, no assistant."""
    plain = GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH
    return generation_config.get_generation_mode() in plain and not generation_config.return_dict_in_generate


@torch.no_grad()
def decode(
    model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **given: Any
) -> Any:
    """Return (rows, columns) token ids, padded on the right; a `custom_generate` of `generate`.

    Args:
        given: What `generate` passes on to the model: `past_key_values`, and an `attention_mask` over all tokens, None
            where no row is padded.
    """
    cache, pad, padding = given["past_key_values"], generation_config.pad_token_id, given["attention_mask"]
    (count, width), known = input_ids.shape, cache.get_seq_length()
    mask = input_ids.new_ones(count, known + width) if padding is None else padding

    def forward(ids: Any, seen: Any) -> Any:
        """The logits that follow the last tokens (rows, vocabulary)."""
        named = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
        named["attention_mask"] = None if padding is None else seen
        if "position_ids" in given:
            named["position_ids"] = (seen.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return model(**model.prepare_inputs_for_generation(ids, **named)).logits[:, -1]

    both, of = torch.cat([mask, input_ids], dim=1).unique(dim=0, return_inverse=True)
    logits = forward(both[:, mask.shape[1] :], both[:, : mask.shape[1]])[of]
    cache.batch_select_indices(of)
    text, rows = input_ids, torch.arange(len(input_ids), device=input_ids.device)
    new: list[Any] = []
    ended = torch.zeros_like(rows, dtype=torch.bool)
    while True:
        scores = logits_processor(text, logits.float())
        token = drawn(scores.softmax(dim=-1)) if generation_config.do_sample else scores.argmax(dim=-1)
        token = token.masked_fill(ended, pad)
        new.append(torch.full_like(input_ids[:, 0], pad).scatter(0, rows, token))
        text = torch.cat([text, token.unsqueeze(1)], dim=1)
        ended = ended | stopping_criteria(text, None)
        if ended.all():
            return torch.cat([input_ids, torch.stack(new, dim=1)], dim=1)
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        if ended.sum() * LEAVE >= len(ended):
            (left,) = (~ended).nonzero(as_tuple=True)
            cache.batch_select_indices(left)
            text, mask, rows, ended = (each[left] for each in (text, mask, rows, ended))
        logits = forward(text[:, -1:], mask)


def drawn(probabilities: Any) -> Any:
    """Return a token of each row (rows): the first one at which the sum so far exceeds a random number.

    Args:
        probabilities: (rows, vocabulary), not negative. They need not sum to one.
    """
    sums = probabilities.cumsum(dim=1)
    whole = sums[:, -1:]
    number = torch.minimum(torch.rand_like(whole) * whole, whole.nextafter(torch.zeros_like(whole)))
    return torch.searchsorted(sums, number, right=True).squeeze(1)
