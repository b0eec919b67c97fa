"""What endpoints say when they refuse, as public bug reports quote it, and what it means."""

from typing import Any

import pytest
import tenacity

from apprentice.tasks.endpoints import refusals
from apprentice.tasks.endpoints.refusals import RefusedRequest


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message} | more}


TPD = "Rate limit reached on tokens per day (TPD): Limit 100000, Used 99991. Please try again in 7h12m."
RPM = "Rate limit reached. Limit: 3 / min. Please try again in 20s. Add a payment method: https://x.com/account/billing"


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind"),
    [
        (402, error("Insufficient credits. Add more using https://openrouter.ai/settings/credits"), {}, "account"),
        (400, error("Budget has been exceeded! Current cost: 10.02", type="budget_exceeded"), {}, "account"),
        (400, error("Your credit balance is too low to access the API."), {}, "account"),
        (429, error("You exceeded your current quota.", code="insufficient_quota"), {"retry-after": "1"}, "account"),
        (429, error(TPD), {}, "account"),
        (429, error("Too many requests"), {"retry-after": "25920"}, "account"),
        (403, error("Key limit exceeded (monthly limit)."), {}, "account"),
        (401, error("Invalid API Key"), {}, "account"),
        (400, error("The response was filtered.", code="content_filter"), {}, "question"),
        (403, error("requires moderation. Your input was flagged", metadata={"reasons": ["x"]}), {}, "question"),
        (400, error("Content Exists Risk"), {}, "question"),
        (400, error("This model's maximum context length is 8192 tokens."), {}, "question"),
        *((status, error("too many tokens"), {}, "question") for status in (400, 403, 413, 422, 429, 451, 500)),
        *((status, error("too many tokens"), {}, kind) for status, kind in ((401, "account"), (501, "request"))),
        (451, error("said"), {}, "question"),
        *((status, error("flagged"), {}, "question") for status in (400, 403, 422)),
        *((status, error("flagged"), {}, kind) for status, kind in ((401, "account"), (404, "request"))),
        (400, error("billing is overdue"), {}, "account"),
        (498, error("billing is overdue"), {}, "account"),
        (422, error("billing is overdue"), {}, "request"),
        *((status, error("no", code="billing"), {}, "account") for status in (400, 402, 403, 429, 498)),
        (422, error("no", code="billing"), {}, "request"),
        (429, error("Too many requests"), {"retry-after": "120"}, "moment"),
        (429, error("Too many requests"), {"retry-after": "121"}, "account"),
        (500, error("the model is not supported"), {}, "request"),
        (413, error("Request too large for model on tokens per minute (TPM)"), {}, "question"),
        (429, error(RPM), {}, "moment"),
        (429, error("Quota exceeded for metric: requests per minute"), {}, "moment"),
        (429, error("You exceeded your current quota. Please retry in 23.4s."), {}, "moment"),
        (400, error("Failed to call a function.", code="tool_use_failed"), {}, "moment"),
        (529, error("Overloaded"), {}, "moment"),
        (502, "<html>Bad gateway</html>", {}, "moment"),
        (498, error("Flex tier capacity exceeded"), {}, "moment"),
        *((status, error("said"), {}, "moment") for status in (408, 409, 425, 500, 502, 503)),
        *((status, error("said"), {}, "request") for status in (404, 410, 424, 499, 501)),
        *((status, error("said"), {}, "account") for status in (401, 403, 407)),
        (400, error("`temperature` is deprecated for this model."), {}, "request"),
        (400, error("The thinking budget 0 is invalid."), {}, "request"),
        (404, error("The model does not exist", code="model_not_found"), {}, "request"),
        (400, [error("Function call is missing a thought_signature")], {}, "request"),
    ],
)
def test_a_refusal_is_of_the_account_the_question_the_moment_or_the_request(
    status: int, body: Any, headers: dict[str, str], kind: str
):
    assert RefusedRequest(status, body, headers, patience=120.0).kind == kind


NOW = 1_800_000_000
LEFT = {"x-ratelimit-remaining": "0"}
INNER = {"X-RateLimit-Remaining": 0, "X-RateLimit-Reset": (NOW + 9) * 1000}


@pytest.mark.parametrize(
    ("message", "headers", "seconds"),
    [
        (TPD, {}, 7 * 3600 + 12 * 60),
        ("again in 6ms", {"retry-after-ms": "1500"}, 1.5),
        ("again in 6ms", {}, 0.006),
        ("again in 2 days, 3 mins", {}, 2 * 86400 + 180),
        ("again in 5 milliseconds", {}, 0.005),
        ("again in 1 hour", {"retry-after": "7"}, 3600),
        ("again in 0 s", {}, None),
        ("no", {"retry-after": "1e9"}, None),  # thirty years are not believed
        ("no", {"retry-after": str(31 * 86400)}, 31 * 86400),
        ("no", {"retry-after": str(31 * 86400 + 1)}, None),
        ("no", {}, None),
        ("available again at 2027-01-15T08:00:30Z.", {}, 30),
        ("available again at 2027-01-15 07:59:30+00:00", {}, 0),
        ("available again at 2027-13-15T08:00:30Z", {}, None),
        ("no", LEFT | {"x-ratelimit-reset": "20"}, 20),
        ("no", {"x-ratelimit-remaining": " 0 ", "x-ratelimit-reset": str(NOW + 20)}, 20),
        ("no", LEFT | {"x-ratelimit-reset": str((NOW + 20) * 1000)}, 20),
        ("no", LEFT | {"x-ratelimit-reset": str(NOW - 20)}, 0),
        ("no", LEFT, None),
        ("no", {"x-ratelimit-remaining": "1", "x-ratelimit-reset": "20"}, None),
        ("no", {"x-ratelimit-reset": "20"}, None),
    ],
)
def test_the_end_of_a_limit_is_read_from_header_and_text(
    message: str, headers: dict[str, str], seconds: float | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(refusals, "time", lambda: NOW)
    assert RefusedRequest(429, error(message), headers, 120.0).ends_in == pytest.approx(seconds)
    nested = error(message, metadata={"headers": INNER})
    assert RefusedRequest(429, nested, headers, 120.0).ends_in == pytest.approx(max(seconds or 0, 9))
    assert RefusedRequest(429, error(message, metadata={"headers": "none"}), headers, 120.0).ends_in == pytest.approx(
        seconds
    )


def test_refusals_are_the_same_but_for_their_numbers_and_identifiers():
    said = [RefusedRequest(400, error(f"Request req_{n}9 failed after {n} tries"), {}, 1.0).signature for n in (1, 23)]
    assert said[0] == said[1] == "400 request # failed after # tries"
    assert RefusedRequest(429, error("Request 1 failed"), {}, 1.0).signature == "429 request # failed"
    assert len(RefusedRequest(429, error("x" * 300), {}, 1.0).signature) == 204


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "first", "detail": "second"}}, "first"),
        ({"error": {"detail": "a\nb"}}, "a b"),
        *(({"error": {name: "said"}}, "said") for name in ("msg", "error_description", "error", "title")),
        ({"error": {"message": "Provider", "metadata": {"raw": "upstream"}}}, "Provider: upstream"),
        ({"error": {"message": "upstream failed", "metadata": {"raw": "upstream"}}}, "upstream failed"),
        ({"error": {"message": "said", "metadata": {"raw": 5}}}, "said"),
        ({"error": {"message": {"a": 1}}}, '{"a": 1}'),
        ({"error": {"code": 7}}, '{"code": 7}'),
        ({"error": "said"}, "said"),
        ([{"error": {"message": "said"}}], "said"),
        ({"message": "said", "error": None}, "said"),
        ("<html>", "<html>"),
        (5, "5"),
        ([1, 2], "[1, 2]"),
        ({}, "status 400"),
        ("", "status 400"),
        ("x" * 500, "x" * 400),
    ],
)
def test_a_refusal_is_told_by_its_first_sentence(body: Any, message: str):
    assert RefusedRequest(400, body, {}, 1.0).message == message


def test_a_request_is_tried_three_times_though_the_patience_is_used_up_and_only_what_may_pass():
    patient: Any = refusals.retrying(0.0)
    state: Any = tenacity.RetryCallState(patient, None, (), {})
    ends = []
    for attempt in (1, 2, 3):
        state.attempt_number = attempt
        ends.append(patient.stop(state))
    assert ends == [False, False, True]
    moment, account = RefusedRequest(503, "busy", {}, 1.0), RefusedRequest(401, "no key", {}, 1.0)
    may_pass = [refusals._may_pass(each) for each in (moment, refusals.Unanswered("a"), account, ValueError())]
    assert may_pass == [True, True, False, False]
