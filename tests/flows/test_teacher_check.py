"""Before the teacher is asked, a run says what of its process decides where the key goes."""

import pytest

from apprentice.flows.teacher_check import inherited


def test_what_the_process_inherits_and_decides_where_the_key_goes_is_told(monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert list(inherited(None)) == []
    monkeypatch.setenv("https_proxy", "http://user:secret@proxy.example:3128")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj_1")
    assert list(inherited("https://host.example/v1")) == [
        "The teacher is asked through the proxy proxy.example (https_proxy).",
        "The teacher is asked for the project proj_1 (OPENAI_PROJECT_ID).",
    ]
    monkeypatch.setenv("no_proxy", "host.example")
    assert len([*inherited("https://host.example/v1")]) == len([*inherited("http://host.example/v1")]) == 1
