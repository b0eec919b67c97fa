"""The base of all settings: frozen, strict, and split into what enters a key and what is operational.

In: a recipe's section. Out: a checked model that knows what of it names an artifact.
"""

from typing import Any

from pydantic import BaseModel

from apprentice.envs.wire.server import STRICT


class Spec(BaseModel):
    """Frozen; unknown fields are refused, and numbers that are none. A numeric field has its range in its type."""

    model_config = STRICT

    def in_key(self) -> dict[str, Any]:
        """What enters a key: all fields but the operational ones and those that only choose."""
        return self._without(OPERATIONAL, SEARCH_SPACE)

    def in_record(self) -> dict[str, Any]:
        """What is written down of how a run was meant: all fields but the operational ones."""
        return self._without(OPERATIONAL)

    def _without(self, *marks: dict[str, Any]) -> dict[str, Any]:
        """Of sections within it, too."""
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
"""Marks a field that says how fast, how patiently or how dear, and never what: changing it makes nothing anew."""
SEARCH_SPACE: dict[str, Any] = {"chooses": True}
"""Marks a field from which a run chooses: what was chosen enters the key by itself, what was not does not."""
WHEN_GIVEN: dict[str, Any] = {"when_given": True}
"""Marks a field that enters the key only where it differs from its default: a later one leaves older keys as they are.
"""
