"""A package that is missing, or that raises where it is imported, is named as itself, with its own error.

In: a package's name, or the error of an import. Out: the package, or a `Stop` that says what to install.
"""

from importlib import import_module
from importlib.metadata import packages_distributions
from typing import Any

from apprentice.envs.defaults import failed_import
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.safe_text import one_line


def broken_package(error: BaseException) -> Stop | None:
    """What to say of a package that raised where it was imported; None where no import failed."""
    if (failed := failed_import(error)) is None:
        return None
    package, raised = failed
    name = packages_distributions().get(package, [package.replace("_", "-")])[0]
    said = one_line(f"{type(raised).__name__}: {raised}")[:300].rstrip(".")
    return Stop(
        f"The package {package} is installed, and importing it fails: {said}.",
        f"Install it again (pip install --force-reinstall {name}), or remove it if nothing needs it (pip uninstall "
        f"{name}).",
    )


def imported(package: str, needs: str, install: str) -> Any:
    """The package that `needs` names. Raises Stop where it is missing, or its import fails.

    Args:
        install: What pip installs to have it.
    """
    try:
        return import_module(package)
    except Exception as error:  # whatever its code raises, which is then shown
        name = package.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise Stop(
                f"{needs} needs {name.replace('_', '-')}, which is not installed.",
                f"Install it (pip install '{install}'), or leave {needs} out.",
            ) from None
        said = one_line(f"{type(error).__name__}: {error}")[:300].rstrip(".")
        broken = Stop(f"The package {name} cannot be imported: {said}.", f"Install it again (pip install '{install}').")
        raise broken_package(error) or broken from error
