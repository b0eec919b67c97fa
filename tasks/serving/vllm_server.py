"""Checks before the model is loaded that a vLLM server can generate for GRPO.

In: the server's address. Out: nothing, or Stop with the command that starts such a server.
"""

import time
from typing import Any

from apprentice.tasks.reporting.errors import Stop

PAUSE = 0.5
"""Seconds between two attempts."""
START = (
    'Start it with: VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config \'{"backend": "nccl"}\' '
    "--logprobs-mode processed_logprobs, where MODEL is the student's; "
    "grpo.generation.server_base_url is its address."
)


def check_server(url: str, timeout: float) -> None:
    """Raises Stop for a server that does not answer within `timeout` seconds or lacks a required option."""
    url = url.rstrip("/")
    _wait(url, timeout)
    served = _json_of(url, "/v1/models")
    if not isinstance(served, dict) or not served.get("data"):
        raise Stop(f"The server at {url} is not a vLLM server: it lists no model.", START)
    known = _json_of(url, "/server_info", {"config_format": "json"})
    config = known.get("vllm_config") if isinstance(known, dict) else None
    if not isinstance(config, dict):
        raise Stop(f"The vLLM server at {url} does not show its configuration (VLLM_SERVER_DEV_MODE).", START)
    if config.get("weight_transfer_config") is None:
        raise Stop(f"The vLLM server at {url} accepts no weights (--weight-transfer-config).", START)
    mode = (config.get("model_config") or {}).get("logprobs_mode")
    if mode != "processed_logprobs":
        raise Stop(
            f"The vLLM server at {url} returns log-probabilities of another policy (--logprobs-mode {mode}).", START
        )


def _wait(url: str, timeout: float) -> None:
    import httpx

    deadline = time.monotonic() + timeout
    while True:
        try:
            answer = httpx.get(f"{url}/health", timeout=5)
        except httpx.InvalidURL:
            raise Stop(f"grpo.generation.server_base_url {url!r} is not a valid URL.", START) from None
        except httpx.TransportError as error:
            why = f"{type(error).__name__}: {error}"
        else:
            if answer.status_code == 200:
                return
            why = f"it answers {answer.status_code}"
        if time.monotonic() >= deadline:
            raise Stop(f"No vLLM server answered at {url} within {timeout:g} s ({why}).", START)
        time.sleep(PAUSE)


def _json_of(url: str, path: str, parameters: dict[str, str] | None = None) -> Any:
    import httpx

    try:
        answer = httpx.get(url + path, params=parameters, timeout=30)
    except httpx.TransportError as error:
        raise Stop(f"The vLLM server at {url} stopped answering ({type(error).__name__}).", START) from error
    try:
        return answer.json() if answer.status_code == 200 else None
    except ValueError:
        return None
