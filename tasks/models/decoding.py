"""Samples completions as transformers' `generate` does, and computes each token once: a tree of branches.

In: prompts, a cache, `generate`'s settings, drafts of what is nearly certain. Out: prompts and completions.

Rows whose tokens so far are equal are one branch, which is one row of the model, until their draws differ; a branch is
copied when it splits, and leaves soon after it ends. Each row keeps its own random numbers, so that its completion is
the one that it has alone, up to rounding. The prompts of a group are equal, and so are many of its first tokens;
so are episodes whose replies have been equal as well.

Where a draft says how every branch goes on, one pass computes all of its tokens. Each row draws its own token at each
place all the same; at the first place where a row leaves its branch's draft, what was computed beyond is forgotten. So
a completion is what it is without drafts (https://arxiv.org/abs/2211.17192 with a draft that is certain).
"""

from collections.abc import Callable
from typing import Any

import torch
from transformers.generation.configuration_utils import GenerationMode

LEAVE = 8
"""One in so many branches has to have ended before the others are copied into a smaller batch."""

Draw = Callable[[Any, Any, Any], Any]
"""(scores (branches, vocabulary), branch of each row (rows), which rows of all (rows)) -> token of each row (rows)."""
TAIL = 8
"""Tokens that a draft begins from, at most."""
Draft = Callable[[list[int], int], list[int]]
"""(last token ids, most tokens) -> tokens that follow, if they are nearly certain; none drafts nothing."""


def one_by_one(generation_config: Any) -> bool:
    """Whether each row takes one token after another, and only token ids are wanted: no beams, no assistant."""
    plain = GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH
    return generation_config.get_generation_mode() in plain and not generation_config.return_dict_in_generate


@torch.no_grad()
def decode(
    model: Any,
    input_ids: Any,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    draw: Draw | None = None,
    draft: Draft | None = None,
    **given: Any,
) -> Any:
    """Return (rows, columns) token ids, padded on the right; a `custom_generate` of `generate`.

    Args:
        draw: How a row takes its token; None for the likeliest.
        draft: None drafts nothing.
        given: What `generate` passes on to the model: `past_key_values`, and an `attention_mask` over all tokens, None
            where no row is padded.
    """
    cache, pad, padding = given["past_key_values"], generation_config.pad_token_id, given["attention_mask"]
    width, known = input_ids.shape[1], cache.get_seq_length()
    every = input_ids.new_ones(len(input_ids), known + width) if padding is None else padding

    def forward(text: Any, new: int, ahead: Any) -> Any:
        """The logits after the last of `new` tokens, and after each one drafted (branches, 1 + drafted, vocabulary)."""
        ids = torch.cat([text[:, -new:], ahead], dim=1)
        seen = torch.nn.functional.pad(mask, (0, ahead.shape[1]), value=1)
        named = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1 + ahead.shape[1]}
        named["attention_mask"] = None if padding is None else seen
        if "position_ids" in given:
            named["position_ids"] = (seen.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return model(**model.prepare_inputs_for_generation(ids, **named)).logits[:, -1 - ahead.shape[1] :]

    both, branch = torch.cat([every, input_ids], dim=1).unique(dim=0, return_inverse=True)
    mask, text = both[:, : known + width], both[:, known + width :]
    ended = torch.zeros(len(text), dtype=torch.bool, device=text.device)
    rows, place = torch.arange(len(input_ids), device=input_ids.device), 0
    longest = generation_config.max_length - 1
    ahead = drafted(draft, text, ended, longest - text.shape[1], pad)
    logits, new = forward(text, width, ahead), list[Any]()
    while True:
        scores = logits_processor(text, logits[:, place].float())
        token = draw(scores, branch, rows) if draw else scores.argmax(dim=-1)[branch]
        token = token.masked_fill(ended[branch], pad)
        new.append(torch.full_like(input_ids[:, 0], pad).scatter(0, rows, token))
        children, branch = (branch * scores.shape[1] + token).unique(return_inverse=True)
        parent, last = children // scores.shape[1], children % scores.shape[1]
        text, mask = torch.cat([text[parent], last.unsqueeze(1)], dim=1), mask[parent]
        has_split, ended = len(parent) > len(ended), ended[parent] | stopping_criteria(text, None)
        if ended.all():
            return torch.cat([input_ids, torch.stack(new, dim=1)], dim=1)
        mask, left = torch.nn.functional.pad(mask, (0, 1), value=1), ahead.shape[1] - place
        if left and not has_split and ((last == ahead[:, place]) | ended).all():
            place += 1
            continue
        if left:
            cache.crop(-left)
        if has_split or ended.sum() * LEAVE >= len(ended):
            runs, stays = ~ended, ~ended[branch]
            rows, branch = rows[stays], (runs.cumsum(dim=0) - 1)[branch[stays]]
            text, mask, ended = text[runs], mask[runs], ended[runs]
            cache.batch_select_indices(parent[runs])
        ahead, place = drafted(draft, text, ended, longest - text.shape[1], pad), 0
        logits = forward(text, 1, ahead)


def drafted(draft: Draft | None, text: Any, ended: Any, most: int, pad: int) -> Any:
    """How all branches go on, as far as it is nearly certain of each (branches, tokens): at most so many tokens, and
    padding after one that has ended."""
    if draft is None:
        return text[:, :0]
    ids = text[:, -TAIL:].tolist()
    found = [None if over else draft(tail, most) for tail, over in zip(ids, ended.tolist(), strict=True)]
    whole = min(len(each) for each in found if each is not None)
    rows = [[pad] * whole if each is None else each[:whole] for each in found]
    return text.new_tensor(rows).view(len(rows), whole)


def by_one_number(count: int) -> Draw:
    """Draws each token by one random number a row, of `count`, where `torch.multinomial` needs one for every token of
    the vocabulary: the same distribution, and other random numbers."""

    def draw(scores: Any, branch: Any, rows: Any) -> Any:
        numbers = torch.rand(count, 1, dtype=scores.dtype, device=scores.device)
        return drawn(scores.softmax(dim=-1), branch, numbers[rows])

    return draw


def as_transformers(count: int) -> Draw:
    """Draws with the random numbers of transformers, which gives them to ended ones of its `count` rows as well."""

    def draw(scores: Any, branch: Any, rows: Any) -> Any:
        of_all = torch.zeros(count, dtype=branch.dtype, device=branch.device).scatter(0, rows, branch)
        return torch.multinomial(scores.softmax(dim=-1)[of_all], num_samples=1).squeeze(1)[rows]

    return draw


def drawn(probabilities: Any, branch: Any, numbers: Any) -> Any:
    """Return a token of each row (rows): the first one at which its branch's sum so far exceeds the row's number.

    Args:
        probabilities: (branches, vocabulary), not negative. They need not sum to one.
        branch: (rows).
        numbers: (rows, 1), from 0 to 1.
    """
    sums = probabilities.cumsum(dim=1)[branch]
    whole = sums[:, -1:]
    number = torch.minimum(numbers * whole, whole.nextafter(torch.zeros_like(whole)))
    return torch.searchsorted(sums, number, right=True).squeeze(1)
