"""Imports transformers before threads do: of two that import it at once, one may find it partially initialised."""

from importlib import import_module

NEEDED = "transformers.utils.chat_template_utils"
"""Makes the schemas of an environment's tools, which every stage that plays episodes asks for."""


def import_before_threads() -> None:
    """Call it in the main thread, before a thread that plays episodes or imports TRL. Takes a second, once."""
    import_module(NEEDED)
