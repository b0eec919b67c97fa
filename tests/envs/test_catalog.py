"""What the catalogue says of names that it does not have, and of packages that are not there."""

import pytest

from apprentice.envs import catalog
from apprentice.envs.catalog import CATALOGUE, ExtraMissing, check_extra, environment_class


def test_an_unknown_environment_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="unknown environment 'wordel'; did you mean 'wordle'"):
        environment_class("wordel")


@pytest.mark.parametrize("name", [name for name in CATALOGUE if environment_class(name).extra[0]])
@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.core"])
def test_without_its_package_an_environment_names_its_extra(name: str, module: str, monkeypatch: pytest.MonkeyPatch):
    cls = environment_class(name)
    monkeypatch.setattr(cls, "extra", (cls.extra[0], module))
    with pytest.raises(ExtraMissing, match=rf"pip install 'openenv-apprentice\[{cls.extra[0]}\]'"):
        check_extra(name)
    with pytest.raises(ExtraMissing):
        catalog.server_app(name, 1)


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_a_mixture_has_no_server_and_everything_else_has_one(name: str):
    if name == "multi":
        with pytest.raises(ValueError, match="a mixture has no server of its own"):
            catalog.server_app(name, 1)
    else:
        assert catalog.server_app(name, 1).openapi()["info"]
