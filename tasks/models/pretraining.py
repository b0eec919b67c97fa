"""Pretraining of a built student: what a base model from the Hub brings along, in less than a minute.

In: a model with random weights and its tokenizer. Out: the same model, trained in place.
A text is a random string, some tokens of the chat template, and the string again, forward or backward. So the student
can repeat and reverse before it has seen an episode, but not in which form an environment wants which of them.
"""

import random
import string
from typing import Any

from apprentice.tasks.reporting import announce

BATCH_SIZE = 64
LEARNING_RATE = 2e-3
ADAM_BETAS = (0.9, 0.98)
WARMUP_STEPS = 50
LETTERS = (2, 5)
"""Fewest and most letters of a string."""
BETWEEN = (3, 6)
"""Fewest and most tokens between a string and its repetition."""


def pretrain(model: Any, tokenizer: Any, steps: int, seed: int) -> None:
    """Trains on `steps` batches of random texts, which the seed draws."""
    import torch
    from transformers import get_linear_schedule_with_warmup

    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, ADAM_BETAS, weight_decay=0.1)
    schedule = get_linear_schedule_with_warmup(optimizer, WARMUP_STEPS, steps)
    model.train()
    with announce.progress("Pretraining steps", steps) as advance:
        for _ in range(steps):
            loss = model(**batch_of(tokenizer, draw)).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            advance(1)


def batch_of(tokenizer: Any, draw: random.Random) -> dict[str, Any]:
    """Token ids, attention mask and labels of BATCH_SIZE texts, padded on the right."""
    import torch

    texts = [text_of(tokenizer, draw) for _ in range(BATCH_SIZE)]
    longest = max(len(ids) for ids, _ in texts)
    ids = torch.full((BATCH_SIZE, longest), tokenizer.pad_token_id)
    labels = torch.full_like(ids, -100)
    for row, (text, known) in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
        labels[row, known : len(text)] = ids[row, known : len(text)]
    seen = torch.arange(longest)[None] < torch.tensor([[len(text)] for text, _ in texts])
    return {"input_ids": ids, "attention_mask": seen.long(), "labels": labels}


def text_of(tokenizer: Any, draw: random.Random) -> tuple[list[int], int]:
    """The token ids of a text, and how many come before the repetition: these are random, so they have no loss."""
    word = "".join(draw.choices(string.ascii_letters, k=draw.randint(*LETTERS)))
    padding, encode = tokenizer.pad_token_id, tokenizer.backend_tokenizer.encode  # a quarter of Transformers' own time
    template = [i for i in tokenizer.get_added_vocab().values() if i != padding]
    before = [draw.choice(template), *encode(word).ids, *draw.choices(template, k=draw.randint(*BETWEEN))]
    again = word if draw.random() < 0.5 else word[::-1]
    return [*before, *encode(again).ids, tokenizer.eos_token_id], len(before)
