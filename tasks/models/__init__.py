"""Models: checkpoints, tokenizers, adapters, precision, memory, the machine's hardware."""
