"""The public names of the package: few, on the page, explained, and imported only when they are used."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import apprentice

PAGE = (Path(__file__).parent.parent / "docs" / "api.md").read_text()
FUNCTIONS = ["collect", "evaluate", "grpo", "load_recipe", "open_artifact", "retrain", "sft"]


def test_the_page_lists_every_public_name_and_no_other():
    listed = re.findall(r"^\| `(\w+)", PAGE.partition("## The names")[2], re.M)
    assert sorted(listed) == sorted(apprentice.__all__)
    assert set(apprentice.__all__) <= set(dir(apprentice))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_comes_in_what_goes_out_and_what_it_raises(name: str):
    function = getattr(apprentice, name)
    assert "→".join(re.findall(r"^(Args|Returns|Raises):", inspect.getdoc(function) or "", re.M)) == (
        "Args→Returns→Raises"
    )
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty
        assert f"{parameter.name}: " in function.__doc__
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty


def test_the_page_has_the_functions_as_they_are_called():
    for name in FUNCTIONS:
        (called,) = re.findall(rf"^\| `{name}\((.*?)\)` \|", PAGE, re.M)
        assert [each.partition("=")[0] for each in called.split(", ")] == [
            *inspect.signature(getattr(apprentice, name)).parameters
        ]


def test_every_class_and_each_of_its_public_methods_has_a_docstring():
    for name in set(apprentice.__all__) - set(FUNCTIONS):
        known = getattr(apprentice, name)
        own = {each: value for each, value in vars(known).items() if not each.startswith("_")}
        for each, value in ({name: known} | own).items():
            if inspect.isclass(value) or inspect.isfunction(value) or isinstance(value, property):
                assert inspect.getdoc(value), f"{name}: {each}"


def test_importing_the_package_imports_nothing_else():
    code = "import sys; before = set(sys.modules); import apprentice; print(*sorted(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {each.partition(".")[0] for each in out} <= {"apprentice", *sys.stdlib_module_names}


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'apprentice' has no attribute 'train'"):
        apprentice.train  # noqa: B018
