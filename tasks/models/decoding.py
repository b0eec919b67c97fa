"""Samples completions as transformers' `generate` does, and computes each token once: a tree of branches.

In: prompts, a cache, `generate`'s settings, drafts of what is nearly certain. Out: prompts and completions.

Rows whose tokens so far are equal are one branch, which is one row of the model, until their draws differ; a branch is
copied when it splits, and leaves soon after it ends. Each row keeps its own random numbers, so that its completion is
the one that it has alone, up to rounding. The prompts of a group are equal, and so are many of its first tokens;
so are episodes whose replies have been equal as well.

Where drafts say how most branches go on, one pass computes all of their tokens. Each row draws its own token at each
place all the same, and follows its branch's draft as long as it draws what that says. So a completion is what it is
without drafts (https://arxiv.org/abs/2211.17192 with a draft that is certain). A branch that leaves its draft earlier
than others has tokens in the cache that its mask leaves out from then on.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from transformers.generation.configuration_utils import GenerationMode

LEAVE = 8
"""One in so many branches has to have ended before the others are copied into a smaller batch."""

Draw = Callable[[Any, Any, Any, Any, int], Any]
"""(scores (branches, vocabulary), branch of each row (rows), which rows of all (rows), how many tokens each has so far
(rows), how many any row has at least that has not ended) -> token of each row (rows)."""
TAIL = 8
"""Tokens that a draft begins from, at most."""
PASS = 40
"""Tokens of which one more pass costs as much on a CPU, by what it takes beside them: SmolLM2's on two cores."""
Draft = Callable[[list[int], int], list[int]]
"""(last token ids, most tokens) -> tokens that follow, if they are nearly certain; none drafts nothing."""


def one_by_one(generation_config: Any) -> bool:
    """Whether each row takes one token after another until one that ends it, and only token ids are wanted: no beams,
    no assistant, no strings or seconds that end a text."""
    plain = generation_config.get_generation_mode() in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH)
    ends = generation_config.stop_strings is None and generation_config.max_time is None
    return plain and ends and not generation_config.return_dict_in_generate


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
        stopping_criteria: Not looked at: rows end by `generation_config`'s end tokens and length, as `one_by_one` says.
        draw: How a row takes its token; None for the likeliest.
        draft: None drafts nothing.
        given: What `generate` passes on to the model: `past_key_values`, and an `attention_mask` over all tokens, None
            where no row is padded.
    """
    cache, pad, padding = given["past_key_values"], generation_config.pad_token_id, given["attention_mask"]
    width, known = input_ids.shape[1], cache.get_seq_length()
    end = generation_config.eos_token_id
    ends = input_ids.new_tensor([end] if isinstance(end, int) else end or [])
    every = input_ids.new_ones(len(input_ids), known + width) if padding is None else padding

    def forward(new: int, ahead: Any, is_drafted: Any) -> Any:
        """The logits after the last of `new` tokens, and after each one drafted (branches, 1 + drafted, vocabulary)."""
        ids = torch.cat([text[:, -new:], ahead], dim=1)
        seen = torch.cat([mask, is_drafted.to(mask.dtype)], dim=1)
        named = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1 + ahead.shape[1]}
        named["attention_mask"] = None if seen.all() else seen
        if "position_ids" in given:
            named["position_ids"] = (seen.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return model(**model.prepare_inputs_for_generation(ids, **named)).logits[:, -1 - ahead.shape[1] :]

    both, branch = torch.cat([every, input_ids], dim=1).unique(dim=0, return_inverse=True)
    mask, text = both[:, : known + width], both[:, known + width :]
    rows, new = _Rows(input_ids, branch, generation_config.max_length - width, ends, pad), width
    over = torch.zeros(len(text), dtype=torch.bool, device=text.device)
    while True:
        ahead, is_drafted = drafted(draft, text, mask, rooms=rows.rooms(over), ends=ends, pad=pad)
        logits = forward(new, ahead, is_drafted)
        steps = (logits_processor(text, logits[:, at].float()) for at in range(logits.shape[1]))
        place, last = rows.follow(steps, ahead, is_drafted, draw)
        if not len(place):
            return torch.cat([input_ids, rows.written()], dim=1)
        kept, new = int(place.max()), 1
        if kept < ahead.shape[1]:
            cache.crop(kept - ahead.shape[1])
        heads, child = torch.stack([rows.branch, place, last], dim=1).unique(dim=0, return_inverse=True)
        parent, place, last = heads.unbind(dim=1)
        left = len(text) - len(parent)
        if len(parent.unique()) < len(parent) or left * LEAVE >= len(text):
            cache.batch_select_indices(parent)
            over, rows.branch = torch.zeros_like(parent, dtype=torch.bool), child
        else:  # those that have ended stay for a while
            over = torch.ones_like(over).index_fill(0, parent, False)
            place, last = (
                torch.zeros_like(over, dtype=each.dtype).index_copy(0, parent, each) for each in (place, last)
            )
            parent = torch.arange(len(text), device=text.device)
        is_kept = torch.arange(kept, device=text.device) < place.unsqueeze(1)
        text = torch.cat([text[parent], ahead[parent, :kept].masked_fill(~is_kept, pad), last.unsqueeze(1)], dim=1)
        mask = torch.cat([mask[parent], is_kept.to(mask.dtype), torch.ones_like(mask[parent, :1])], dim=1)


class _Rows:
    """The rows that have not ended, and what all have written.

    Args:
        branch: Of each row.
        most: Tokens that a row may write.
        ends: Tokens that end a row.
    """

    def __init__(self, input_ids: Any, branch: Any, most: int, ends: Any, pad: int):
        self.branch, self._most, self._ends = branch, most, ends
        self._rows = torch.arange(len(input_ids), device=input_ids.device)
        self._lengths, self._out = torch.zeros_like(self._rows), input_ids.new_full((len(input_ids), most), pad)

    def rooms(self, over: Any) -> Any:
        """How many tokens may be drafted of each branch; 0 for one that is over."""
        left = self._most - 1 - self._lengths[self._rows]
        return torch.zeros_like(over, dtype=left.dtype).scatter(0, self.branch, left).masked_fill(over, 0)

    def follow(self, steps: Iterable[Any], ahead: Any, is_drafted: Any, draw: Draw | None) -> tuple[Any, Any]:
        """Draw the tokens of all rows, as far as they follow the drafts `ahead`. Returns of each row that goes on how
        many drafted tokens it has taken, and its token after them.

        Args:
            steps: Scores (branches, vocabulary), after no token drafted, after the first one, and so on.
        """
        place, last = torch.zeros_like(self._rows), torch.zeros_like(self._rows)
        ended = torch.zeros_like(self._rows, dtype=torch.bool)
        follows = torch.arange(len(self._rows), device=ended.device)
        least = int(self._lengths[self._rows].min())
        for at, scores in enumerate(steps):
            of, these = self.branch[follows], self._rows[follows]
            token = draw(scores, of, these, self._lengths[these], least) if draw else scores.argmax(dim=-1)[of]
            self._out[these, self._lengths[these]] = token
            self._lengths[these] += 1
            is_over = torch.isin(token, self._ends) | (self._lengths[these] == self._most)
            place[follows], last[follows], ended[follows] = at, token, is_over
            if at < ahead.shape[1]:
                follows = follows[~is_over & is_drafted[of, at] & (token == ahead[of, at])]
                if not len(follows):
                    break
        self._rows, self.branch = self._rows[~ended], self.branch[~ended]
        return place[~ended], last[~ended]

    def written(self) -> Any:
        """(all rows, columns) token ids, padded on the right."""
        return self._out[:, : self._lengths.max()]


def drafted(draft: Draft | None, text: Any, mask: Any, rooms: Any, ends: Any, pad: int) -> tuple[Any, Any]:
    """How the branches go on, as far as it is nearly certain of enough of them (branches, tokens), up to a token that
    ends a row; and which of these tokens are no padding. Enough: computing padding for the others costs no more than
    the passes that are saved.

    Args:
        mask: Over a cache's tokens and those of `text`, which has padding where it is 0.
        rooms: Of each branch how many tokens it may draft; 0 for one that has ended.
    """
    if draft is None:
        return text[:, :0], text[:, :0].bool()
    last = text[:, -2 * TAIL :]
    tails = zip(last.tolist(), mask[:, -last.shape[1] :].tolist(), rooms.tolist(), strict=True)
    stops, found = set(ends.tolist()), list[list[int]]()
    for ids, seen, room in tails:
        tail = [token for token, is_seen in zip(ids, seen, strict=True) if is_seen][-TAIL:]
        ahead = draft(tail, room) if room else []
        end = next((place for place, token in enumerate(ahead) if token in stops), len(ahead))
        found.append(ahead[: end + 1])
    enough = math.ceil(len(found) ** 2 / (len(found) + PASS))
    whole = sorted(map(len, found), reverse=True)[enough - 1]
    lengths = text.new_tensor([min(len(each), whole) for each in found])
    padded = [each[:whole] + [pad] * (whole - len(each)) for each in found]
    is_drafted = torch.arange(whole, device=text.device) < lengths.unsqueeze(1)
    return text.new_tensor(padded).view(len(found), whole), is_drafted


def by_one_number(count: int) -> Draw:
    """Draws each token by one random number a row, of `count`, where `torch.multinomial` needs one for every token of
    the vocabulary: the same distribution, and other random numbers."""
    numbers = _Noise(lambda scores: torch.rand(count, 1, dtype=scores.dtype, device=scores.device))

    def draw(scores: Any, branch: Any, *of_rows: Any) -> Any:
        return drawn(scores.softmax(dim=-1), branch, numbers.of(scores, *of_rows))

    return draw


def as_transformers(count: int) -> Draw:
    """Draws with the random numbers of transformers, which gives them to ended ones of its `count` rows as well.
    `torch.multinomial` draws one token so: the largest of the probabilities over exponential noise."""
    noise = _Noise(lambda scores: scores.new_empty(count, scores.shape[1]).exponential_())

    def draw(scores: Any, branch: Any, *of_rows: Any) -> Any:
        return (scores.softmax(dim=-1)[branch] / noise.of(scores, *of_rows)).argmax(dim=-1)

    return draw


class _Noise:
    """Random numbers of all rows for each place, drawn in the order of the places, whichever row comes there first.

    Args:
        made: What a place has (all rows, numbers), given scores.
    """

    def __init__(self, made: Callable[[Any], Any]):
        self._made, self._at, self._drawn = made, dict[int, Any](), 0

    def of(self, scores: Any, rows: Any, places: Any, least: int) -> Any:
        """Those of each row at its place; forgets those before the place `least`."""
        furthest = int(places.max())
        while self._drawn <= furthest:
            self._at[self._drawn] = self._made(scores)
            self._drawn += 1
        self._at = {place: each for place, each in self._at.items() if place >= least}
        if furthest == int(places.min()):
            return self._at[furthest][rows]
        return torch.stack([self._at[place][row] for row, place in zip(rows.tolist(), places.tolist(), strict=True)])


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
