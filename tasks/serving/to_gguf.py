"""Runs llama.cpp's own converter: `python -m apprentice.tasks.serving.to_gguf CONVERTER CHECKPOINT FILE`.

The converter knows how a tokenizer splits text by the hash of one sentence's ids, so it refuses a tokenizer whose
vocabulary it has not seen. Here such a tokenizer is known by what its file says. Whether that was right is measured:
`apprentice export` compares prompt ids.
"""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
SPLITS: dict[str, list[dict[str, Any]]] = {"gpt-2": [BYTES], "smollm": [DIGITS, BYTES]}
"""llama.cpp's name of how a text is split before merges, by the steps in tokenizer.json."""
NO_MERGES = "its tokenizer has no merges, which llama.cpp's format needs"
UNKNOWN_SPLIT = "its tokenizer splits text in a way that llama.cpp has no name for"


def split_name(tokenizer: dict[str, Any]) -> str | None:
    """llama.cpp's name for the steps before the merges in the data of tokenizer.json; None for others."""
    given = tokenizer.get("pre_tokenizer") or {}
    steps = given.get("pretokenizers", [given]) if given.get("type") == "Sequence" else [given]

    def fits(step: dict[str, Any], wanted: dict[str, Any]) -> bool:
        return all(step.get(name) == value for name, value in wanted.items())

    for name, wanted in SPLITS.items():
        if len(steps) == len(wanted) and all(map(fits, steps, wanted)):
            return name
    return None


def main() -> None:
    converter, checkpoint, file = map(Path, sys.argv[1:])
    sys.path[:0] = [str(converter.parent / "gguf-py"), str(converter.parent)]
    from conversion.base import TextModel  # pyright: ignore[reportMissingImports]

    known = TextModel.get_vocab_base_pre

    def named(model: Any, tokenizer: Any) -> str:
        try:
            return known(model, tokenizer)
        except NotImplementedError:
            name = split_name(json.loads((checkpoint / "tokenizer.json").read_text()))
            if name is None:
                sys.exit(UNKNOWN_SPLIT)
            return name

    TextModel.get_vocab_base_pre = named
    sys.argv = [str(converter), str(checkpoint), "--outfile", str(file), "--outtype", "f16"]
    runpy.run_path(str(converter), run_name="__main__")


if __name__ == "__main__":
    main()
