"""Trains a small language model to act in an environment, and measures what it learned.

The names in `__all__` are for notebooks and scripts: docs/api.md. Everything below them may change without notice.
Nothing is imported before a name is used: `import apprentice` takes milliseconds.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apprentice.flows.library import collect, evaluate, grpo, retrain, sft
    from apprentice.flows.recipe.loading import load_recipe
    from apprentice.flows.recipe.recipe import Recipe
    from apprentice.flows.results import Model, Result, Rows, Run, open_artifact
    from apprentice.tasks.reporting.errors import Stop

CHECKOUT = Path(__file__).parent.parent
if (CHECKOUT / "pyproject.toml").is_file():
    # The rooms are folders beside this one. The links to them are for editors and type checkers, which find
    # apprentice.tasks through them; Python needs none, so a system without symbolic links runs a checkout as well.
    __path__.insert(0, str(CHECKOUT))

__all__ = [
    "Model",
    "Recipe",
    "Result",
    "Rows",
    "Run",
    "Stop",
    "collect",
    "evaluate",
    "grpo",
    "load_recipe",
    "open_artifact",
    "retrain",
    "sft",
]

_MODULES = {
    **dict.fromkeys(("Model", "Result", "Rows", "Run", "open_artifact"), "apprentice.flows.results"),
    **dict.fromkeys(("collect", "evaluate", "grpo", "sft"), "apprentice.flows.library"),
    "retrain": "apprentice.flows.library",
    "load_recipe": "apprentice.flows.recipe.loading",
    "Recipe": "apprentice.flows.recipe.recipe",
    "Stop": "apprentice.tasks.reporting.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from apprentice.flows.runtime.environment_variables import ready

    ready()  # before Prefect is imported
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
