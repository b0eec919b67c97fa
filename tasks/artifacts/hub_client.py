"""How the Hub is asked: patiently while it is away or busy, and with words where it refuses.

In: a call of huggingface_hub. Out: its answer, or a `Stop` that says which permission is missing; never the token.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.retry import seconds_left, stop_after_failing_for
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.failures import causes_of, failure_of
from apprentice.tasks.reporting.safe_text import one_line

# Xet is a second way of moving files, with failures of its own: the one that is tested is the one that is used
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")

R = TypeVar("R")
FIRST_PATIENCE = 20.0
"""Seconds in which the Hub must answer once, for a run that can go on without it."""


def ask(call: Callable[[], R], namespace: str, patience: float, can_do_without: bool = False) -> R:
    """What the Hub answers; asked again, with growing intervals, for `patience` seconds while it is away or busy.

    Raises Stop where it refuses, and the client's own exception where it stays away: at once where a caller that
    `can_do_without` would have to wait longer than its patience.
    """
    from apprentice.tasks.artifacts.hub_http import be_patient

    be_patient(patience)
    with _refusals(namespace):
        return _patiently(patience, can_do_without)(call)


@dataclass
class HubConnection:
    """What one store may expect of the Hub."""

    namespace: str
    """A user or an organisation to which the token may write."""
    patience: float
    """Seconds that the Hub may be away, or busy."""
    needed: bool
    """Whether other machines wait there for what is published: then nothing is done without it."""
    is_lost: bool = False
    has_answered: bool = False

    def ask(self, call: Callable[[], R]) -> R:
        """What the Hub answers. Raises Stop, and what the client raises where it stays away."""
        first = not self.needed and not self.has_answered
        try:
            patience = min(FIRST_PATIENCE, self.patience) if first else self.patience
            answer = ask(call, self.namespace, patience, can_do_without=first)
        except Exception as error:
            if not self.needed and is_away(error):
                self._lose()
            raise
        self.has_answered = True
        return answer

    def or_without(self, remote: Callable[[], R], local: Callable[[], R]) -> R:
        """The Hub's answer, or the result without it if it is out of reach and not needed."""
        from huggingface_hub import constants

        if self.needed:
            return remote()
        if not self.is_lost and not constants.HF_HUB_OFFLINE:
            try:
                return remote()
            except Exception as error:
                if not is_away(error):
                    raise
        self._lose()
        return local()

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            announce.warn(
                "The Hub is out of reach: what is there already is not seen, and what is made stays in the store's "
                "folder. The next run sends it, or `apprentice publish RECIPE`."
            )


def is_away(error: BaseException) -> bool:
    """Whether an exception says that the Hub is away or busy, rather than that it refuses."""
    return failure_of(error)[:2] == ("hub", "wait")


def wait_until_hub_answers(patience: float) -> None:
    """Returns when the Hub gives any answer but a server error. Raises Stop after `patience` seconds."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session, hf_raise_for_status

    from apprentice.tasks.artifacts.hub_http import be_patient

    def probe() -> None:
        be_patient(patience)
        hf_raise_for_status(get_session().get(f"{constants.ENDPOINT}/api/models?limit=1", follow_redirects=True))

    try:
        _patiently(patience)(probe)
    except Exception as error:
        if failure_of(error).boundary != "hub":
            raise
        raise Stop(
            f"The Hub was away for {patience:.0f} s ({type(error).__name__}).",
            "Retry this run when it is back: it resumes there.",
        ) from error


def _patiently(patience: float, can_do_without: bool = False) -> tenacity.Retrying:
    growing = tenacity.wait_random_exponential(multiplier=0.5, max=min(30.0, patience / 4))

    def wait(state: tenacity.RetryCallState) -> float:
        delay = _requested_delay(state)
        return min(growing(state) if delay is None else delay, seconds_left(state, patience))

    is_over = stop_after_failing_for(patience)  # from the first failure on: an upload may take long

    def stop(state: tenacity.RetryCallState) -> bool:
        return is_over(state) or (can_do_without and (_requested_delay(state) or 0.0) > patience)

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_away),
        wait=wait,
        stop=stop,
        before_sleep=_tell,
        reraise=True,
    )


def _requested_delay(state: tenacity.RetryCallState) -> float | None:
    """Return the seconds that the Hub asks to wait."""
    from apprentice.tasks.artifacts.hub_http import requested_delay

    error = state.outcome.exception() if state.outcome else None
    return requested_delay(error) if error else None


def _tell(state: tenacity.RetryCallState) -> None:
    assert state.outcome is not None
    error = state.outcome.exception()
    count("retries")
    if state.attempt_number in (1, 4) or state.attempt_number % 20 == 0:
        delay = _requested_delay(state)
        why = type(error).__name__ if delay is None else f"it asks to wait {delay:.0f} s"
        announce.warn(f"The Hub does not answer as it should ({why}); trying again.")


@contextmanager
def _refusals(namespace: str) -> Iterator[None]:
    """Says in words which permission is missing; never the request, which has the token."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        yield
    except RepositoryNotFoundError:
        raise
    except Exception as error:
        answers = (each for each in causes_of(error) if isinstance(each, HfHubHTTPError) and each.response is not None)
        if (refused := next(answers, None)) is None:  # an upload's is the cause of another one
            raise
        status, said = refused.response.status_code, one_line(refused.server_message or "")
        reads = refused.response.request.method in ("GET", "HEAD")
        tokens = "https://huggingface.co/settings/tokens"
        if status == 401:
            raise Stop(
                "The Hub does not know the token (401): it is wrong, or it has expired.",
                f"Set HF_TOKEN to a valid one with {'read' if reads else 'write'} permission for {namespace} "
                f"({tokens}), and run again.",
            ) from None
        if status == 403 and reads:
            raise Stop(
                f"The Hub refused (403): the token may not read {refused.response.url.path}. {said}".strip(),
                f"Ask {namespace} for access, or set HF_TOKEN to a token that may read it ({tokens}), and run again.",
            ) from None
        if status == 403:
            raise Stop(
                f"The Hub refused (403): the token may not write to {namespace}, or its storage is used up. "
                f"{said}".strip(),
                f"Give the token write permission for {namespace}, or make room there, and run again.",
            ) from None
        raise
