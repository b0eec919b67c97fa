"""Waits until a server that has just been started answers at /health."""

from collections.abc import Callable
from typing import Literal

import tenacity

LOOK_S = 0.2
"""Seconds between two checks of a server that does not answer yet."""

State = Literal["ready", "starting", "exited"]


def when_ready(url: str, state: Callable[[bool], State], patience: float) -> State:
    """Return `ready` once a server answers; what it is where it exited, or does not answer for `patience` seconds.

    Args:
        state: Is told whether /health answers.
    """
    import httpx

    def look() -> State:
        try:
            answer = httpx.get(f"{url}/health", timeout=2, trust_env=False)  # not through a proxy
        except httpx.TransportError:
            return state(False)
        return state(answer.is_success)

    return tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda found: found == "starting"),
        wait=tenacity.wait_fixed(LOOK_S),
        stop=tenacity.stop_after_delay(patience),
        retry_error_callback=lambda _: "starting",
    )(look)
