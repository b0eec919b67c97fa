"""The key of a teacher's endpoint, from an environment variable or a Prefect Secret block; no recipe holds one.

In: the teacher's settings. Out: the key, or Stop with the variable or the block that lacks it.
"""

import os

from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.teacher import TeacherSpec


def read_key(spec: TeacherSpec) -> str:
    """The endpoint's API key, without spaces and line breaks at its ends. Raises Stop when there is none."""
    where = f"the Prefect Secret block {spec.key_block}" if spec.key_block else spec.key_variable
    given = _read_key(spec)
    key = given.strip()
    if key != given:
        announce.say(f"The key in {where} had spaces or a line break at its ends; they are left out.")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise Stop(
            f"The key in {where} holds a space, a line break or another character that no key has.",
            f"Set {where} again.",
        )
    return key


def _read_key(spec: TeacherSpec) -> str:
    if spec.key_block is not None:
        from prefect.blocks.system import Secret

        try:
            return str(Secret.load(spec.key_block, _sync=True).get())  # type: ignore[call-arg, union-attr]
        except ValueError:
            raise Stop(
                f"There is no Prefect Secret block named {spec.key_block}.",
                "Create it in Prefect's interface, or remove teacher.key_block and set OPENAI_API_KEY.",
            ) from None
    key = os.environ.get(spec.key_variable)
    if not key or not key.strip():
        raise Stop(
            f"The endpoint needs a key and {spec.key_variable} is not set.",
            "Set it in the environment (any text for an endpoint without keys) and run again.",
        )
    return key
