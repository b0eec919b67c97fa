"""The forms without a browser, which is quick: what is asked, the page, its address, the scripted policy."""

import html.parser
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from apprentice.envs.browsergym import env, forms, pages
from apprentice.envs.catalog import EnvironmentSpec


class Controls(html.parser.HTMLParser):
    """The names of a page's controls by their element."""

    def __init__(self, page: str):
        super().__init__()
        self.named: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("input", "textarea", "select", "button"):
            self.named.append((tag, given["value"] if tag == "button" else given["name"]))


@pytest.fixture
def served() -> Iterator[pages.Pages]:
    found = pages.Pages()
    yield found
    found.shutdown()
    found.server_close()


def response(served: pages.Pages, method: str, path: str, body: str = "", length: int | None = None) -> tuple[int, str]:
    """Status and text of one request; `length` is what it says of itself."""
    connection = http.client.HTTPConnection(served.host, timeout=20)
    connection.putrequest(method, path, skip_host=path.startswith("http"))
    connection.putheader("Content-Length", str(len(body) if length is None else length))
    connection.endheaders(body.encode())
    reply = connection.getresponse()
    found = reply.status, reply.read().decode()
    connection.close()
    return found


def test_a_page_has_each_control_of_its_form_once_and_in_order():
    form = forms.draw(5, fields=3, choices=2, buttons=3, texts="any")
    found = Controls(form.page).named
    tall = {label: "textarea" if "\n" in form.wanted[label] else "input" for label in form.fields}
    assert found == [
        *((tall[label], label) for label in form.fields),
        *(("select", label) for label in form.lists),
        *(("button", name) for name in form.buttons),
    ]


def test_a_text_of_several_lines_has_a_field_of_several_lines():
    drawn = [forms.draw(seed, fields=8, choices=0, buttons=1, texts="any") for seed in range(20)]
    lines = {
        ("\n" in form.wanted[name], tag)
        for form in drawn
        for tag, name in Controls(form.page).named
        if name in form.wanted
    }
    assert lines == {(True, "textarea"), (False, "input")}


def test_the_goal_names_everything_that_is_wanted_and_the_button():
    form = forms.draw(5, fields=3, choices=2, buttons=3, texts="any")
    *wanted, last = form.goal.split("\n")
    assert {line.partition(": ")[0]: json.loads(line.partition(": ")[2]) for line in wanted} == form.wanted
    assert last == f"Press {form.press}."
    assert form.press in form.buttons


def test_the_score_is_the_share_that_was_sent_as_asked():
    form = forms.draw(5, fields=2, choices=1, buttons=2, texts="any")
    right = form.wanted | {"press": form.press}
    assert form.score({name: text.replace("\n", "\r\n") for name, text in right.items()}) == 1.0
    assert [form.score(right | dict.fromkeys(list(right)[:wrong], "?")) for wrong in range(5)] == [
        1.0,
        0.75,
        0.5,
        0.25,
        0.0,
    ]
    assert form.score({}) == 0.0


def test_a_form_has_between_the_least_and_the_most_of_everything():
    for fields, choices, buttons in ((0, 0, 1), (8, 4, 8)):
        form = forms.draw(1, fields, choices, buttons, "words")
        assert (len(form.fields), len(form.lists), len(form.buttons)) == (fields, choices, buttons)
    for given, what in (((-1, 0, 1), "fields"), ((9, 0, 1), "fields"), ((0, 5, 1), "choices"), ((0, 0, 0), "buttons")):
        with pytest.raises(ValueError, match=f"{what} must be"):
            forms.draw(1, *given, "words")
    with pytest.raises(ValueError, match="texts must be one of"):
        forms.draw(1, 0, 0, 1, "none")


def test_settings_that_no_form_has_are_refused():
    for wrong in ({"buttons": 0}, {"buttons": 9}, {"fields": 9}, {"choices": 5}, {"texts": "none"}, {"field": 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            EnvironmentSpec(name="browsergym", settings=wrong)
    most = {"fields": 8, "choices": 4, "buttons": 8}
    assert EnvironmentSpec(name="browsergym", settings=most).make().max_turns == 15
    assert EnvironmentSpec(name="browsergym").make().max_turns == 6


def test_what_is_sent_to_a_form_arrives_at_that_form(served: pages.Pages):
    (url, sheet), (_, other) = (served.add(forms.draw(seed, 2, 1, 2, "any")) for seed in (1, 2))
    path = urlsplit(url).path
    assert response(served, "GET", path) == (200, sheet.form.page)
    assert not sheet.arrived.is_set()
    sent = sheet.form.wanted | {"press": sheet.form.press, "Note": ""}
    assert response(served, "POST", path, urlencode(sent)) == (204, "")
    assert sheet.arrived.wait(20)
    assert sheet.sent == sent
    assert not other.arrived.is_set()


def test_nothing_but_a_form_that_stands_is_served_and_nothing_is_passed_on(served: pages.Pages):
    url, sheet = served.add(forms.draw(1, 1, 0, 1, "any"))
    path = urlsplit(url).path
    for elsewhere in ("/", f"{path}x", "http://127.0.0.1:1/", "http://example.com/"):
        for method in ("GET", "POST"):
            assert response(served, method, elsewhere)[0] == 403, (method, elsewhere)
    assert response(served, "POST", path, length=pages.LONGEST + 1)[0] == 403
    served.remove(url)
    assert response(served, "GET", path)[0] == response(served, "POST", path)[0] == 403
    assert not sheet.arrived.is_set()


def test_the_scripted_policy_does_what_the_goal_says_and_then_presses_the_button():
    form = forms.draw(7, fields=2, choices=1, buttons=2, texts="any")
    page = {name: f"{place}" for place, (_, name) in enumerate(Controls(form.page).named) if name}
    roles = {**dict.fromkeys(form.fields, "textbox"), **dict.fromkeys(form.lists, "combobox")}
    shown = [f"[{bid}] {roles.get(name, 'button')} '{name}'" for name, bid in page.items()]
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{form.goal}\n\n" + "\n".join(shown)}]
    calls = []
    for _ in range(4):
        calls.append(env.call({}, messages, 0.0))
        messages.append({"role": "tool", "content": "done"})
    wanted = [
        ("fill", {"bid": page[label], "text": form.wanted[label]})
        if label in form.fields
        else ("select_option", {"bid": page[label], "option": form.wanted[label]})
        for label in form.order
    ]
    assert calls == [*wanted, ("click", {"bid": page[form.press]})]


def test_the_scripted_policy_does_again_what_the_environment_refused():
    first = env.call({}, seen(1)[:1], 0.0)
    refused = [*seen(1)[:1], {"role": "tool", "content": json.dumps({"error": "busy"})}]
    assert env.call({}, refused, 0.0) == first != env.call({}, seen(1), 0.0)


def test_the_scripted_policy_errs_on_the_share_it_is_told_and_always_on_the_same_forms():
    def wrong() -> list[int]:
        return [seed for seed in range(1000) if env.call({}, seen(seed), 0.1) != env.call({}, seen(seed), 0.0)]

    assert 70 <= len(wrong()) <= 130
    assert wrong() == wrong()


def test_an_evaluation_tells_forms_with_plain_texts_from_others():
    for texts, kinds in (("words", {"plain"}), ("any", {"awkward"})):
        environment = EnvironmentSpec(name="browsergym", settings={"fields": 2, "texts": texts}).make()
        goals = [(seed, f"{forms.draw(seed, 2, 1, 2, texts).goal}\n\n[6] textbox 'Name'") for seed in range(50)]
        slices = [environment.slices(seed, question) for seed, question in goals]
        assert {each["texts"] for each in slices} == kinds
        assert {each["entries"] for each in slices} == {3}


def seen(seed: int) -> list[dict[str, Any]]:
    """A form as its page reads, when its field is filled already."""
    form = forms.draw(seed, fields=1, choices=0, buttons=2, texts="any")
    page = [f"[6] textbox '{form.fields[0]}'", *(f"[{8 + n}] button '{name}'" for n, name in enumerate(form.buttons))]
    question = f"{form.goal}\n\n" + "\n".join(page)
    return [{"role": "user", "content": question}, {"role": "tool", "content": json.dumps("filled")}]
