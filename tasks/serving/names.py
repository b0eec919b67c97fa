"""The names of the engines, for a command line that imports nothing else of them."""

from typing import Literal

EngineName = Literal["transformers", "vllm", "llama.cpp"]
