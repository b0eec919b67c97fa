"""The HTTP client of huggingface_hub, with a store's retry window in place of the library's.

In: requests. Out: answers. huggingface_hub sleeps as long as Retry-After says, and repeats a request five times before
it raises. Here a busy Hub is an exception at once, and a silent one after the retry window. So `hub_client` alone
decides how long to wait.
"""

from time import monotonic
from typing import Any, ClassVar

import httpx2
from huggingface_hub import get_session, set_client_factory
from huggingface_hub.utils import hf_raise_for_status, parse_ratelimit_headers

from apprentice.envs.wire.retry import seconds_in

TIMEOUT = 60.0
"""Seconds without a byte after which a request counts as lost."""
LEAST_TIMEOUT = 15.0
MOST_ERROR = 1_000_000
"""Bytes of an error's body that are read."""


class HubUnreachable(Exception):
    """Nothing has answered for as long as the store is patient; the cause is the client's own exception."""


class PatientClient(httpx2.Client):
    patience: ClassVar[float] = TIMEOUT
    """Seconds, of whoever asks at present."""
    _silent_since: ClassVar[float | None] = None

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Return the answer. Raises HfHubHTTPError for 429 and 5xx, HubUnreachable after `patience` seconds."""
        start = monotonic()
        try:
            answer = super().send(request, **options)
        except httpx2.TransportError as error:
            since = PatientClient._silent_since = PatientClient._silent_since or start
            if monotonic() - since > self.patience:
                raise HubUnreachable(f"nothing answers at {request.url.host}: {error}") from error
            raise
        PatientClient._silent_since = None
        if answer.status_code == 429 or answer.status_code >= 500:
            if int(answer.headers.get("Content-Length", 0)) < MOST_ERROR:
                answer.read()
            hf_raise_for_status(answer)
        return answer


def be_patient(patience: float) -> None:
    """Let the requests that follow wait `patience` seconds at most."""
    PatientClient.patience = patience
    PatientClient._silent_since = None
    _session().timeout = httpx2.Timeout(min(TIMEOUT, max(patience, LEAST_TIMEOUT)))


def requested_delay(error: BaseException) -> float | None:
    """Return the seconds that the Hub asks to wait, by its `ratelimit` header or by Retry-After."""
    response = getattr(error, "response", None)
    if response is None:
        return None
    limit = parse_ratelimit_headers(response.headers)
    if response.status_code == 429 and limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    return seconds_in(response.headers.get("Retry-After"))


def _session() -> httpx2.Client:
    if not isinstance(get_session(), PatientClient):
        hooks = get_session().event_hooks  # among them the one of the offline mode
        set_client_factory(lambda: PatientClient(event_hooks=hooks, follow_redirects=True))
    return get_session()
