"""Whether a permanent Prefect server is in use, shared with other runs."""

import os

TEMPORARY = "APPRENTICE_TEMPORARY_SERVER"
"""The environment variable that names this run's own server, here and in the processes that it starts."""


def shared() -> bool:
    """Whether the Prefect server in use is a permanent one, not the temporary server of this run."""
    from prefect.settings import get_current_settings

    url = get_current_settings().api.url
    return bool(url) and url != os.environ.get(TEMPORARY)
