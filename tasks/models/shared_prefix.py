"""Computes the common prefix of a batch's prompts once, and attends to that one copy in every row.

In: a model, the token ids of a batch's prompts. Out: a cache for `generate` that already holds their common prefix.
Instructions and tool schemas make most of a prompt. With separate key/value caches, every row would compute them and,
at every token, read them again. Here the prefix's keys are stored once, and the queries of all rows meet them in
one matrix product (https://arxiv.org/abs/2402.05099). The texts are those without it, up to ties of rounding: the same
scores are summed in another order.
"""

from itertools import takewhile
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

SHORTEST = 32
"""Tokens from which sharing a prefix saves more than it costs."""
ATTENTION = "shared_prefix"
NEED_WHOLE_PROMPTS = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "guidance_scale": 1.0,
    **dict.fromkeys(("bad_words_ids", "sequence_bias", "watermarking_config", "exponential_decay_length_penalty")),
    **dict.fromkeys(("cache_implementation", "prefill_chunk_size", "prompt_lookup_num_tokens")),
}
"""Settings of `generate` that read all tokens so far or need a cache of their own, by the value that turns them off."""


CACHED, FEW = 2**21, 2**23
"""Scores of a layer that a CPU's caches hold, and those that it keeps for the backward pass, in 50 MB; with more, they
are computed again there."""


class SharedPrefix:
    """Keeps the longest prefix seen; later batches and turns use as much of it as they have in common.

    Args:
        generation: The settings of `generate`. Nothing is shared if one of them needs whole prompts.
    """

    def __init__(self, model: Any, generation: Any):
        self._model = model
        self._ids: list[int] = []
        self._layers: list[Any] = []
        self._possible = can_share(model) and not _needs_whole_prompts(model, generation)
        if self._possible:
            model.set_attn_implementation(ATTENTION)

    def cache(self, prompts: list[list[int]], new_tokens: int) -> Cache | None:
        """A cache that holds the prompts' common prefix, if it is worth sharing, and has room to generate; None where
        the model or a setting needs another one.

        At least one token of each prompt is left, whose logits name the first new one.
        """
        if not self._possible:
            return None
        wanted = min(in_common(prompts), min(map(len, prompts)) - 1)
        known = min(in_common([self._ids, *prompts]), wanted)
        if known < wanted and wanted >= SHORTEST and (len(prompts) > 1 or known < SHORTEST):
            self._compute(prompts[0][:wanted])
            known = wanted
        if known < SHORTEST:
            return Cache(layers=[_Layer(new_tokens) for _ in DynamicCache(config=self._model.config).layers])
        splits = all(each.reaches for each in self._layers)
        return Cache(layers=[_Layer(new_tokens, known, each.keys, each.values, splits) for each in self._layers])

    def _compute(self, ids: list[int]) -> None:
        cache = Cache(layers=[_Layer(0) for _ in DynamicCache(config=self._model.config).layers])
        inputs = torch.tensor([ids], device=self._model.device)
        self._model.base_model(input_ids=inputs, past_key_values=cache, use_cache=True)
        self._ids, self._layers = ids, cache.layers


def rests(tokenizer: Any, prompts: list[list[int]], known: int, device: Any) -> Any:
    """What follows the first `known` tokens of each prompt, padded between both; the mask covers all."""
    inputs = tokenizer.pad({"input_ids": [ids[known:] for ids in prompts]}, padding_side="left", return_tensors="pt")
    inputs = inputs.to(device)
    inputs["attention_mask"] = torch.nn.functional.pad(inputs["attention_mask"], (known, 0), value=1)
    return inputs


def in_common(prompts: list[list[int]]) -> int:
    """How many tokens all begin with: as many as the first and the last in order."""
    pairs = zip(min(prompts), max(prompts), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _needs_whole_prompts(model: Any, generation: Any) -> bool:
    """Whether `generate` does, by these settings or by those that it takes from the model's."""

    def value(name: str) -> Any:
        own = getattr(generation, name, None)
        return getattr(model.generation_config, name, None) if own is None else own

    return any(value(name) not in (None, off) for name, off in NEED_WHOLE_PROMPTS.items())


def can_share(model: Any) -> bool:
    """Whether a model supports SDPA, and every layer keeps one key and value a token, which no later token changes.

    Sliding windows and linear attention do not; nor do positions that are scaled by the length of the whole text.
    """
    layers = DynamicCache(config=model.config).layers
    positions = {str(getattr(each, "rope_type", "")) for each in model.modules()}
    scaled = any(kind in each for each in positions for kind in ("dynamic", "longrope"))
    plain = all(type(each) is DynamicLayer for each in layers) and not scaled
    return plain and model.get_correct_attn_implementation(None) == "sdpa"


class _Layer(DynamicLayer):
    """The keys and values of one layer: those of the prefix once, and the others for every row.

    A model whose keys and values reach `_attend` unchanged gets only the second part. Any other gets both as one, as
    from any cache.

    Args:
        splits: Whether they reached it when the prefix was computed.
    """

    def __init__(self, new_tokens: int, length: int = 0, keys: Any = None, values: Any = None, splits: bool = False):
        super().__init__()
        self.prefix = (keys[:, :, :length], values[:, :, :length]) if length else None
        self._shared = length if splits else 0
        """Tokens that `keys` and `values` leave to `prefix`."""
        self.reaches = False
        self._length = length
        self._new_tokens = new_tokens

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = self._with_room(0, key_states), self._with_room(1, value_states)
        begin = self._length - self._shared
        self._length += key_states.shape[-2]
        keys, values = self._written("keys", key_states, begin), self._written("values", value_states, begin)
        keys.layer = values.layer = self
        return keys, values

    def _with_room(self, part: int, states: Any) -> Any:
        """The prefix's keys (0) or values (1), and room for all tokens; a tensor that grew would be copied at every one
        of them."""
        rows, heads, width, size = states.shape
        whole = states.new_zeros(rows, heads, self._length - self._shared + width + self._new_tokens, size)
        if self.prefix and not self._shared:
            whole[:, :, : self._length] = self.prefix[part]
        return whole

    def _written(self, name: str, states: Any, begin: int) -> Any:
        """All that is written of keys or values, with new states from `begin`."""
        whole, end = getattr(self, name), begin + states.shape[-2]
        if end > whole.shape[-2]:  # rows that left their drafts at different places need more than the longest one
            whole = torch.nn.functional.pad(whole, (0, 0, 0, end - whole.shape[-2] + self._new_tokens))
            setattr(self, name, whole)
        whole[:, :, begin:end] = states
        return whole[:, :, :end]

    def get_seq_length(self) -> int:
        return self._length

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last tokens, given as a negative number; those after them are written in their place."""
        self._length += tokens_to_remove


def _attend(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **given: Any
) -> tuple[Any, None]:
    """SDPA; for tokens after a shared prefix and what followed it, attention to both under one softmax."""
    layer: _Layer | None = getattr(key, "layer", None)
    if layer is not getattr(value, "layer", None):  # the model computes one of them anew
        layer = None
    if layer is None or not layer.prefix or not layer._shared:
        plain = attention_mask is None or attention_mask.dtype == torch.bool
        if layer is not None and plain and given.get("position_bias") is None:
            layer.reaches = True
        if plain and _is_quicker_by_products(query, key, attention_mask, given):
            inputs = query, key, value, attention_mask, scaling
            if query.shape[:3].numel() * key.shape[2] <= FEW:
                return _by_products(*inputs), None
            return checkpoint(_by_products, *inputs, use_reentrant=False, preserve_rng_state=False), None
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **given)
    prefix_keys, prefix_values = (each[0] for each in layer.prefix)  # heads, prefix, size
    (rows, heads, new, size), shared = query.shape, prefix_keys.shape[1]
    query = query.reshape(rows, len(prefix_keys), -1, size) * (scaling or size**-0.5)  # of each key's head, its queries
    after = query @ key.transpose(2, 3)
    if attention_mask is not None:
        seen = attention_mask[..., shared:].repeat(1, 1, query.shape[2] // new, 1)
        after = after.masked_fill(~seen, -torch.inf)
    before = _of_all_rows(query, prefix_keys.transpose(1, 2))
    weights = torch.cat([before, after], dim=-1).softmax(dim=-1, dtype=torch.float32).to(value.dtype)
    out = weights[..., shared:] @ value + _of_all_rows(weights[..., :shared], prefix_values)
    return out.reshape(rows, heads, new, size).transpose(1, 2), None


def _is_quicker_by_products(query: Any, key: Any, attention_mask: Any, given: dict[str, Any]) -> bool:
    """Whether SDPA's backward pass takes several times as long: with a mask in bf16 on a CPU it does."""
    of_a_row = query.shape[1:3].numel() * key.shape[2]
    learns = query.requires_grad and not given.get("dropout") and given.get("position_bias") is None
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    here = (device, dtype) == ("cpu", torch.bfloat16)
    return learns and here and attention_mask is not None and of_a_row <= FEW


def _by_products(query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None) -> Any:
    """What SDPA computes, with the softmax in fp32, a few rows at a time; keys that heads share are not repeated."""
    rows, heads, new, size = query.shape
    together = max(CACHED // (heads * new * key.shape[2]), 1)
    if together < rows:
        q, k, v, seen = (each.split(together) for each in (query, key, value, attention_mask))
        return torch.cat([_by_products(*part, scaling=scaling) for part in zip(q, k, v, seen, strict=True)])
    query = query.reshape(rows, key.shape[1], -1, size) * (scaling or size**-0.5)
    scores = query @ key.transpose(2, 3)
    unseen = ~attention_mask.repeat(1, 1, query.shape[2] // new, 1)
    weights = scores.masked_fill(unseen, torch.finfo(scores.dtype).min).softmax(dim=-1, dtype=torch.float32)
    return (weights.to(value.dtype) @ value).reshape(rows, heads, new, size).transpose(1, 2)


def _of_all_rows(left: Any, right: Any) -> Any:
    """`left @ right`, where `right` is the same for all rows: one product a head."""
    rows, _, queries, _ = left.shape
    return (left.transpose(0, 1).flatten(1, 2) @ right).unflatten(1, (rows, queries)).transpose(0, 1)


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
