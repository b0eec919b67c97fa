"""The pipeline: the recipe, the flows, the command line."""

import apprentice.envs  # noqa: F401  # sets environment variables that Prefect reads at import time
