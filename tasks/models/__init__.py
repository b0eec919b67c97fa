"""Weights in and out: checkpoints, tokenizers, adapters, precision, memory, the machine's hardware."""
