"""The display name of a teacher: a model and its endpoint, or a scripted policy.

In: a teacher's settings, from a recipe or an artifact's record. Out: a short text for terminal, report and cards.
"""

import ipaddress
from typing import Any
from urllib.parse import urlsplit

OPENAI = "api.openai.com"
LOCAL = (".local", ".internal", ".lan", ".home", ".localhost")


def who_played(teacher: dict[str, Any]) -> str:
    """Such as "gpt-5-mini at api.openai.com"."""
    if (rate := teacher.get("scripted_error_rate")) is not None:
        return f"scripted policy, error rate {rate:g}: not a model"
    return f"{teacher.get('model')} at {_host(teacher.get('base_url'))}"


def who_played_for_strangers(teacher: dict[str, Any]) -> str:
    """Like `who_played`, but without the host name of a private endpoint."""
    host = _host(teacher.get("base_url"))
    if teacher.get("scripted_error_rate") is not None or _is_public(host):
        return who_played(teacher)
    return f"{teacher.get('model')} at a private endpoint"


def _host(base_url: str | None) -> str:
    if not base_url:
        return OPENAI
    try:
        return urlsplit(base_url).hostname or "an address without a host"
    except ValueError:
        return "an address without a host"


def _is_public(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith(LOCAL)
