"""Whether a permanent Prefect server is in use, shared with other runs.

In: Prefect's settings. Out: a boolean. A command that finds no server starts a temporary one and names it here.
"""

import os

from prefect.settings import get_current_settings

TEMPORARY = "APPRENTICE_TEMPORARY_SERVER"
"""The environment variable that names this run's own server, here and in the processes that it starts."""


def shared() -> bool:
    """Whether the Prefect server in use is a permanent one, not the temporary server of this run."""
    url = get_current_settings().api.url
    return bool(url) and url != os.environ.get(TEMPORARY)


LOCAL = "local"
"""The tag of flow runs that a command started on this machine, not a worker."""
