"""Computes what the rows of a batch share once: in SFT's loss, in GRPO's, and when GRPO generates.

In: a model, a batch as TRL has it. Out: TRL's results, up to rounding.

SFT's rows begin with the same instructions and tools: they are computed in one row, all others attend to these keys
and values, and their gradients flow through them. What follows the last token with loss is left out, and the head
computes the logits of tokens with loss alone.

GRPO's prompts are padded on the left, their completions on the right. The instructions and tools of all prompts are
computed in one row, and the rest of a group's prompt in one row of its group. Every completion attends to these keys
and values, and its gradient flows through them (https://arxiv.org/abs/2506.05433). Completions of a group that begin
alike, as calls of a tool do, become one tree (https://arxiv.org/abs/2511.00413): a token that several begin with is
computed once, and scored once. TRL computes all prompts and all tokens again for each completion.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from apprentice.tasks.episodes.rendering import IGNORED
from apprentice.tasks.models import trl_internals
from apprentice.tasks.models.configuration import is_random

SMALLER = 0.8
"""Share of the tokens of a batch's completions that their tree has at most, to be worth it."""


def sharing_prompts(trainer_class: type, generates: bool, fast: bool, draft: Any = None) -> type:
    """The trainer class of an online training, which shares prompts.

    Args:
        generates: Whether transformers generates; other engines keep their own keys, and only the loss shares.
        fast: Whether it may draw other random numbers. In fp32 a key has always stood for those of transformers.
        draft: Of the frame of a call, as `decoding` takes it.
    """
    from apprentice.tasks.models.decoding import as_transformers, by_one_number

    trl_internals.fit_head_to_caches()
    draws = by_one_number if fast else as_transformers
    kept = KeptPrefix()
    generating = partial(generate_shared, draws=draws, draft=draft, kept=kept) if generates else None
    return trl_internals.sharing_trainer(trainer_class, can_share, generating, forward_shared)


def sharing_rows(trainer_class: Any) -> type:
    """The SFTTrainer class, which shares what rows begin with."""
    trl_internals.fit_head_to_caches()

    class SharingRows(trainer_class):
        def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            # a router's loss counts every token of a batch; packed rows have no mask
            whole = self.aux_loss_enabled or "attention_mask" not in inputs or not can_share(self)
            return super().compute_loss(model if whole else forward_rows(model), inputs, *given, **named)

    return SharingRows


def forward_rows(model: Any) -> Callable[..., Any]:
    """The model's forward pass for TRL's SFT loss; its output covers what follows the common prefix."""
    from transformers.cache_utils import DynamicCache

    from apprentice.tasks.models.shared_prefix import ATTENTION, SHORTEST

    if trl_internals.attention_of(_inner(model)) != ATTENTION:
        _inner(model).set_attn_implementation(ATTENTION)

    def forward(*, input_ids: Any, attention_mask: Any, labels: Any = None, **given: Any) -> Any:
        if labels is None or not (learned := (labels != IGNORED).any(dim=0).nonzero()).numel():
            return model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **given)
        first, end = int(learned[0]), int(learned[-1]) + 1
        ids, mask, labels = input_ids[:, :end], attention_mask[:, :end], labels[:, :end]
        same = (ids == ids[:1]).all(dim=0) & mask.all(dim=0)
        known = min(int(same.long().cumprod(dim=0).sum()), first - 1)  # the token before names the first one with loss
        if len(ids) == 1 or known < SHORTEST:
            return forward_scored(model, labels, input_ids=ids, attention_mask=mask, **given)
        cache = DynamicCache(config=_inner(model).config)
        prefix = _after(cache, ids[:1, :known], mask[:1, :known])
        model(**prefix, use_cache=True, logits_to_keep=1)
        _expand(cache, len(ids))
        return forward_scored(model, labels[:, known:], **_after(cache, ids[:, known:], mask), **given)

    return forward


def forward_scored(model: Any, labels: Any, **given: Any) -> Any:
    """TRL's fused forward pass, whose head sees only the states that precede a label; its output is one row of them.

    TRL does so on a GPU. On a CPU its head computes every token's logits, also of those without loss.
    """
    if not given.get("fused_lm_head"):
        return model(labels=labels, **given)
    wanted = labels[:, 1:] != IGNORED
    with _states(model, lambda states: states[:, :-1][wanted].unsqueeze(0)):
        return model(shift_labels=labels[:, 1:][wanted].unsqueeze(0), **given)


@contextmanager
def _states(model: Any, chosen: Callable[[Any], Any]) -> Iterator[None]:
    """Within it the model's head gets what `chosen` makes of the last states (rows, columns, features)."""

    def choose(module: Any, args: Any, output: Any) -> Any:
        output.last_hidden_state = chosen(output.last_hidden_state)
        return output

    hook = _inner(model).base_model.register_forward_hook(choose)
    try:
        yield
    finally:
        hook.remove()


def can_share(trainer: Any) -> bool:
    """Whether a model is whole, in one process, keeps keys, and these do not depend on the row they are in."""
    from apprentice.tasks.models import shared_prefix

    attentions = "sdpa", shared_prefix.ATTENTION
    alone = trainer.model_wrapped is trainer.model and not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)
    model = _inner(trainer.model)
    # activation checkpointing computes every layer twice, and would add the keys twice
    keeps_keys = trl_internals.attention_of(model) in attentions and not model.is_activation_checkpointing
    return alone and keeps_keys and not is_random(trainer) and shared_prefix.can_share(model)


def _inner(model: Any) -> Any:
    """The model within an adapter's."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class KeptPrefix:
    """What the prompts of a step begin with, while its weights are the same: a step samples in several rounds."""

    def __init__(self):
        self._prefix: Any = None
        self._step: int | None = None

    def of(self, model: Any, generation_config: Any, step: int | None) -> Any:
        """The `SharedPrefix` of this step; a new one where it is another one, or None."""
        from apprentice.tasks.models.shared_prefix import SharedPrefix

        if self._prefix is None or step is None or step != self._step:
            self._prefix, self._step = SharedPrefix(model, generation_config), step
        return self._prefix


@contextmanager
def generate_shared(
    model: Any,
    prompts: list[list[int]],
    draws: Callable[[int], Any],
    draft: Any = None,
    kept: KeptPrefix | None = None,
    step: int | None = None,
) -> Iterator[None]:
    """Within it the model's `generate` computes each token of these prompts, its next inputs, and of what follows once.

    Args:
        draws: How so many rows take their tokens where they are sampled, as of `decoding`.
        draft: As `decoding` takes it.
        kept: Keeps the prefix for other rounds of `step`.
    """
    import torch

    from apprentice.tasks.models.decoding import decode, one_by_one

    model, kept = _inner(model), kept or KeptPrefix()
    generate = model.generate

    def generating(*, input_ids: Any, attention_mask: Any, generation_config: Any, **given: Any) -> Any:
        given["generation_config"] = generation_config
        cache = kept.of(model, generation_config, step).cache(prompts, generation_config.max_new_tokens)
        if cache is None:
            return generate(input_ids=input_ids, attention_mask=attention_mask, **given)
        known = cache.get_seq_length()
        rest, mask = _without(known, attention_mask, input_ids, attention_mask)
        mask = torch.nn.functional.pad(mask, (known, 0), value=1)
        if one_by_one(generation_config):
            given |= {"custom_generate": decode, "draft": draft}
            given["draw"] = draws(len(rest)) if generation_config.do_sample else None
        out = generate(input_ids=rest, attention_mask=mask, past_key_values=cache, **given)
        return torch.cat([input_ids, out[:, rest.shape[1] :]], dim=1)

    model.generate = generating
    try:
        yield
    finally:
        del model.generate


def forward_shared(model: Any, completion_columns: int) -> Callable[..., Any]:
    """The model's forward pass for TRL's loss; its output covers the completions only.

    Args:
        completion_columns: The columns of a batch that are completions, padded on the right.
    """
    import torch
    from transformers.cache_utils import DynamicCache

    from apprentice.tasks.models.shared_prefix import SHORTEST

    def forward(*, input_ids: Any, attention_mask: Any, labels: Any, **given: Any) -> Any:
        columns = input_ids.shape[1] - completion_columns
        known = _in_common(input_ids[:, :columns], attention_mask[:, :columns])
        if len(input_ids) == 1 or known < SHORTEST:
            return model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **given)
        cache = DynamicCache(config=_inner(model).config)
        (aligned,) = _without(0, attention_mask, input_ids, align=True)
        advance(aligned[:1, :known], torch.ones_like(aligned[:1, :known]), cache)
        ids, mask, labels = _without(known, attention_mask, input_ids, attention_mask, labels)
        before = columns - known - 1  # what is left of prompts, without their last token: it names the first new one
        both, group = torch.cat([each[:, : before + 1] for each in (ids, mask)], dim=1).unique(
            dim=0, return_inverse=True
        )
        of_group, seen = both.split(before + 1, dim=1)
        cache.batch_select_indices(torch.zeros(len(both), dtype=torch.long, device=ids.device))
        if before >= SHORTEST:
            seen = torch.nn.functional.pad(seen[:, :before], (known, 0), value=1)
            advance(of_group[:, :before], seen, cache)
            ids, labels = ids[:, before:], labels[:, before:]
        else:
            seen = seen.new_ones(len(both), known)
        tree = CompletionTree.of(ids, mask[:, -ids.shape[1] :], group, completion_columns, known=seen.shape[1])
        if tree is not None:
            return forward_tree(model, tree, seen, cache, **given)
        cache.batch_select_indices(group)
        mask = torch.nn.functional.pad(mask, (known, 0), value=1)
        return model(**_after(cache, ids, mask), labels=labels, **given)

    def advance(ids: Any, mask: Any, cache: Any) -> None:
        model(**_after(cache, ids, mask), use_cache=True, logits_to_keep=1)

    return forward


class CompletionTree(NamedTuple):
    """The rows of each group as a tree, in which the tokens that several of them begin with stand once.

    Completions of a group often begin alike, as calls of a tool do, and some are equal.
    """

    ids: Any
    """(groups, nodes) token ids; the last one of a row has no node, because nothing follows it."""
    sees: Any
    """(groups, nodes, nodes), boolean: a node itself, and those that lead to it."""
    depth: Any
    """(groups, nodes): how many lead to it."""
    before: Any
    """(scored): the node, counted over all groups, that a token of a completion follows."""
    scored: Any
    """(scored): token ids, each of them once for all rows of a group that are alike so far."""
    place: Any
    """(rows, columns of completions): where a token stands in `scored`; -1 for padding."""

    @classmethod
    def of(cls, ids: Any, mask: Any, group: Any, completion_columns: int, known: int) -> "CompletionTree | None":
        """The tree of rows whose last columns are completions; None where it would not pay.

        Args:
            mask: Like `ids` (rows, columns), 0 for padding.
            group: (rows): the group of each.
            known: Tokens before it.
        """
        import torch

        device, ids, mask = ids.device, ids.cpu(), mask.cpu()
        groups: list[dict[tuple[int, int], int]] = [{} for _ in range(int(group.max()) + 1)]
        scored: dict[tuple[int, int, int], int] = {}
        place = torch.full((len(ids), completion_columns), -1)
        first = ids.shape[1] - completion_columns
        for row, of in enumerate(group.tolist()):
            columns = mask[row].nonzero().flatten().tolist()
            node = -1
            for column, token in zip(columns, ids[row, columns].tolist(), strict=True):
                if column >= first:
                    place[row, column - first] = scored.setdefault((of, node, token), len(scored))
                if column != columns[-1]:
                    node = groups[of].setdefault((node, token), len(groups[of]))
        width = max(map(len, groups))
        if not _pays(ids.shape, (len(groups), width), known):
            return None
        nodes = [torch.tensor([*each], dtype=torch.long).view(-1, 2) for each in groups]
        parents, tokens = torch.nn.utils.rnn.pad_sequence(nodes, batch_first=True, padding_value=-1).unbind(dim=2)
        sees = torch.eye(width, dtype=torch.bool).repeat(len(groups), 1, 1)
        every = torch.arange(len(groups))
        for node in range(1, width):  # those that lead to it come before it
            parent = parents[:, node]
            sees[:, node] |= sees[every, parent] & (parent >= 0).unsqueeze(1)
        before, labels = [of * width + node for of, node, _ in scored], [token for *_, token in scored]
        tensors = tokens.clamp(min=0), sees, sees.sum(dim=2) - 1, torch.tensor(before), torch.tensor(labels), place
        return cls(*(each.to(device) for each in tensors))


def _pays(rows: tuple[int, int], tree: tuple[int, int], known: int) -> bool:
    """Whether a tree of (groups, nodes) has clearly fewer tokens than (rows, columns), and no more pairs that attend to
    one another, after `known` others."""
    (count, columns), (groups, nodes) = rows, tree
    pairs = groups * nodes * (known + nodes), count * columns * (known + columns)
    return 0 < groups * nodes <= SMALLER * count * columns and pairs[0] <= pairs[1]


def forward_tree(model: Any, tree: CompletionTree, seen: Any, cache: Any, **given: Any) -> Any:
    """TRL's fused forward pass over a tree; its output has the rows and columns of the completions.

    Args:
        seen: (groups, tokens of the cache): 0 for padding.
    """
    import torch

    before = seen.bool().unsqueeze(1).expand(-1, tree.ids.shape[1], -1)
    inputs = {
        "input_ids": tree.ids,
        "attention_mask": torch.cat([before, tree.sees], dim=2).unsqueeze(1),
        "position_ids": seen.sum(dim=1, keepdim=True) + tree.depth,
        "past_key_values": cache,
    }
    with _states(model, lambda states: states.flatten(0, 1)[tree.before].unsqueeze(0)):
        out = model(**inputs, shift_labels=tree.scored.unsqueeze(0), **given)
    for name in ("log_probs", "entropy"):
        if (of_tokens := getattr(out, name)) is not None:
            setattr(out, name, of_tokens[0][tree.place.clamp(min=0)].masked_fill(tree.place < 0, 0.0))
    return out


def _after(cache: Any, ids: Any, mask: Any) -> dict[str, Any]:
    """The arguments of a forward pass over tokens that follow those of a cache; `mask` covers both."""
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "past_key_values": cache}


def _expand(cache: Any, rows: int) -> None:
    """Makes the only row of a cache the rows of a batch, without copies."""
    for layer in cache.layers:
        layer.keys, layer.values = (each.expand(rows, -1, -1, -1) for each in (layer.keys, layer.values))


def _in_common(prompts: Any, mask: Any) -> int:
    """How many tokens all prompts begin with; at least one of each is left over."""
    (aligned,) = _without(0, mask, prompts, align=True)
    equal = (aligned == aligned[:1]).all(dim=0).long().cumprod(dim=0).sum()
    return int(min(equal, mask.sum(dim=1).min() - 1))


def _without(known: int, mask: Any, *tensors: Any, align: bool = False) -> list[Any]:
    """Tensors of rows that are padded on the left, without the first `known` tokens of each row.

    Args:
        align: Move the padding to the right as well; what stands there is of no meaning then.
    """
    import torch

    padding = mask.argmax(dim=1, keepdim=True)
    columns = torch.arange(mask.shape[1] - known, device=mask.device)
    places = columns + padding if align else columns + known * (columns >= padding)
    places = places.clamp(max=mask.shape[1] - 1)
    return [tensor.gather(1, places) for tensor in tensors]
