"""A new revision upstream is told once, as an event that deployments are triggered by."""

from typing import ClassVar

import pytest

from apprentice.flows import watch as module
from apprentice.flows.watch import Watched, watch

pytestmark = pytest.mark.usefixtures("prefect_server")


class Hub:
    """As much of the Hub's client as is asked."""

    heads: ClassVar[dict[str, str]] = {}

    def repo_info(self, repository: str, repo_type: str):
        class Info:
            sha = self.heads[f"{repo_type}/{repository}"]

        return Info


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, str]]]:
    import huggingface_hub

    heard: list[tuple[str, str, dict[str, str]]] = []
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(module.announce, "event", lambda *event: heard.append(event))
    return heard


@pytest.mark.long
def test_the_first_look_only_notes_and_a_moved_head_is_told_once(events):
    space, dataset = Watched(kind="space", repository="a/words"), Watched(kind="dataset", repository="a/rows")
    Hub.heads = {"space/a/words": "one", "dataset/a/rows": "one"}
    watch([space, dataset])
    assert events == []
    Hub.heads["space/a/words"] = "two"
    watch([space, dataset])
    watch([space, dataset])
    assert events == [("revision.new", "space.a/words", {"repository": "a/words", "revision": "two", "before": "one"})]
