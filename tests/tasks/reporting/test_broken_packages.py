"""A package that is missing or broken is named as itself, with its own error, whoever imported it."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import environment_class
from apprentice.flows.cli.error_messages import _as_stop
from apprentice.tasks.artifacts.foreign.models import readable
from apprentice.tasks.reporting.broken_packages import broken_package, imported
from apprentice.tasks.reporting.errors import Stop

ROWS = {
    "raise ImportError(\"cannot import name 'HybridCache'\")": "ImportError: cannot import name 'HybridCache'",
    "raise AttributeError('no attribute float8')": "AttributeError: no attribute float8",
    "raise OSError('libcudart.so.12: no such file')": "OSError: libcudart.so.12: no such file",
    "raise ValueError('numpy.dtype size changed')": "ValueError: numpy.dtype size changed",
    "raise RuntimeError('CUDA Setup failed')": "RuntimeError: CUDA Setup failed",
    "import nothing_like_this": "ModuleNotFoundError: No module named 'nothing_like_this'",
    "try:\n    import none_such\nexcept ImportError as e:\n    raise RuntimeError('look up') from e": "No module",
}
SAYS = "The package toy_broken is installed, and importing it fails: .*{}.*\n→ Install it again .pip install"


@pytest.fixture(params=ROWS.items(), ids=lambda row: row[1])
def said(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the broken package raises; a second one, `toy_wraps`, imports it when it is imported."""
    body, says = request.param
    (tmp_path / "toy_broken.py").write_text(body)
    (tmp_path / "toy_wraps.py").write_text(
        "try:\n    import toy_broken\nexcept Exception as e:\n    raise RuntimeError('Failed to import a.b.c') from e"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return SAYS.format(says)


@pytest.mark.parametrize("package", ["toy_broken", "toy_wraps"])
def test_what_a_setting_needs_is_imported_and_the_broken_one_named(package: str, said: str):
    with pytest.raises(Stop, match=said):
        imported(package, "sft.lora", "openenv-apprentice[lora]")


def test_it_is_not_the_model_that_cannot_be_loaded(said: str):
    with pytest.raises(Stop, match=said), readable("owner/model"):
        import_module("toy_wraps")


def test_it_is_not_the_environment_s_class_that_is_missing(said: str):
    with pytest.raises(ValueError, match=r"toy_wraps:Environment: (importing toy_broken fails|toy_wraps cannot)"):
        environment_class("toy_wraps:Environment")


def test_the_command_line_names_it_for_any_error_that_comes_from_it(said: str):
    with pytest.raises(Exception) as failed:  # noqa: PT011 (any)
        import_module("toy_wraps")
    assert isinstance(failed.value, Exception)
    stop = _as_stop(failed.value)
    assert stop.cause.startswith("The package toy_broken is installed, and importing it fails: ")
    assert "pip install --force-reinstall toy-broken" in stop.remedy


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ImportError("requires the SentencePiece library"), "Install what it needs, or name another model."),
        (ValueError("unknown model type"), "Name another model, or make it anew."),
        (KeyError("rope"), "Name another model, or make it anew."),
    ],
)
def test_an_error_without_a_failed_import_is_still_the_model_s(error: Exception, remedy: str):
    with pytest.raises(Stop, match="owner/model cannot be loaded") as stop, readable("owner/model"):
        raise error
    assert stop.value.remedy == remedy


def test_a_missing_package_is_named_with_what_to_install():
    with pytest.raises(Stop, match=r"sft.lora needs no-such-package, which is not installed.\n→ .*\[lora\]"):
        imported("no_such_package", "sft.lora", "openenv-apprentice[lora]")


@pytest.mark.parametrize("code", ["1 / 0", "raise ImportError('asked for')"])
def test_an_error_of_text_that_is_executed_is_no_failed_import(code: str):
    with pytest.raises((ArithmeticError, ImportError)) as failed:
        exec(compile(code, "<template>", "exec"), {"__name__": "toy"})
    assert broken_package(failed.value) is None


def test_an_error_that_hides_another_on_purpose_is_looked_at_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "toy_hidden.py").write_text("raise ImportError('gone')")
    monkeypatch.syspath_prepend(str(tmp_path))

    def falls_back() -> Any:
        try:
            return import_module("toy_hidden")
        except ImportError:
            raise KeyError("the template's own") from None

    with pytest.raises(KeyError) as failed:
        falls_back()
    assert broken_package(failed.value) is None
