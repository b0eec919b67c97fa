"""The base class of all settings, and the marks that say which fields enter an artifact's key.

In: a recipe's section. Out: a frozen, strict, validated model that knows which of its fields enter an artifact's key:
all except OPERATIONAL ones.
"""

from typing import Any, get_args

from pydantic import BaseModel, ValidationInfo, field_validator

from apprentice.envs.wire.server import STRICT

A_NUMBER = "Input should be a number"
"""The error for a truth value, which pydantic would read as 0 or 1."""


class Spec(BaseModel):
    """A frozen settings model that rejects unknown fields, NaN and infinity. Numeric fields declare their range."""

    model_config = STRICT

    @field_validator("*", mode="before")
    @classmethod
    def _is_a_number(cls, given: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        allowed = {annotation, *get_args(annotation)}
        if isinstance(given, bool) and allowed & {int, float} and bool not in allowed:
            raise ValueError(A_NUMBER)
        return given

    def in_key(self) -> dict[str, Any]:
        """The fields that enter a key: all except `OPERATIONAL` and `SEARCH_SPACE` ones."""
        return self._without(OPERATIONAL, SEARCH_SPACE)

    def in_made_by(self) -> dict[str, Any]:
        """What a record says of a stage's settings: the fields of the key, and where the work was done."""
        return self.in_key()

    def in_record(self) -> dict[str, Any]:
        """The fields that an artifact's record keeps: all except `OPERATIONAL` ones."""
        return self._without(OPERATIONAL)

    def _without(self, *marks: dict[str, Any]) -> dict[str, Any]:
        """Removes the marked fields, also from nested sections."""
        left_out = {
            name
            for name, field in type(self).model_fields.items()
            if field.json_schema_extra in marks
            or (field.json_schema_extra == WHEN_GIVEN and getattr(self, name) == field.default)
        }
        sections = {name: value for name, value in self if isinstance(value, Spec) and name not in left_out}
        whole = self.model_dump(mode="json", exclude=left_out)
        return whole | {name: value._without(*marks) for name, value in sections.items()}


OPERATIONAL: dict[str, Any] = {"operational": True}
"""Marks a field that changes speed, patience or cost but not the result; changing it invalidates no artifact."""
SEARCH_SPACE: dict[str, Any] = {"chooses": True}
"""Marks a field with candidates to choose from: the chosen one enters the key, the others do not."""
WHEN_GIVEN: dict[str, Any] = {"when_given": True}
"""Marks a field that enters the key only when it differs from its default, so that adding it keeps existing keys."""
