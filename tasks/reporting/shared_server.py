"""Whether a Prefect server is in use that outlives this run and serves others, too.

In: Prefect's settings. Out: an answer. A command that finds no server starts a temporary one and names it here.
"""

import os

from prefect.settings import get_current_settings

TEMPORARY = "APPRENTICE_TEMPORARY_SERVER"
"""The environment variable that names this run's own server, here and in the processes that it starts."""


def shared() -> bool:
    """Whether a Prefect server is in use that other runs use as well: not the temporary one of a single run."""
    url = get_current_settings().api.url
    return bool(url) and url != os.environ.get(TEMPORARY)


LOCAL = "local"
"""The tag of flow runs that a command started, in a process of a person's."""
