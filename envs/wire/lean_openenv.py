"""Keeps OpenEnv from importing Gradio, which doubles the time that a server or a session takes to start.

`openenv.core` (read in openenv-core 0.3.0) imports its web page with Gradio eagerly, but shows it only where
ENABLE_WEB_INTERFACE is set, as on a Space. Here its module is imported when the page is made.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

PAGE = "openenv.core.env_server.web_interface"


class LazyPage(ModuleType):
    """Stands for the module of the web page until one of its functions or classes is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def load_and_call(*given: Any, **named: Any) -> Any:
            sys.modules.pop(PAGE, None)
            return getattr(import_module(PAGE), name)(*given, **named)

        return load_and_call


def import_page_when_needed() -> None:
    """Must be called before anything imports OpenEnv."""
    if "openenv.core.env_server" not in sys.modules:
        sys.modules.setdefault(PAGE, LazyPage(PAGE))
