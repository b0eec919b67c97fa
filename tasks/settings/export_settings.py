"""The settings of an export: which forms a model is written in, and how much worse one may be.

In: a recipe's section `export`. Out: validated settings; docs/recipes.md shows each field's docstring.
"""

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from apprentice.tasks.settings.spec import Spec

Form = Literal["f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0"]
"""A quantization of llama.cpp."""


class ExportSpec(Spec):
    """How `apprentice export --format gguf` writes and measures a model; a run does not read it."""

    section: ClassVar[str] = "export"

    quantize: list[Form] = Field(default=["f16", "q8_0", "q4_k_m"], min_length=1)
    """The forms to write, each a file of its own."""
    margin: float = Field(default=0.02, ge=0.0, lt=1.0)
    """How much accuracy a file may lose against the checkpoint, as a share. One that loses more is marked as worse."""
    prompts: int = Field(default=100, ge=1)
    """Prompts with tools whose token ids are compared with those of training."""

    @field_validator("quantize")
    @classmethod
    def _names_each_once(cls, forms: list[Form]) -> list[Form]:
        if len(set(forms)) < len(forms):
            raise ValueError("a form is named twice")
        return forms
