"""Where it runs: recipes, and later the pools and schedules."""

import apprentice.envs  # noqa: F401  # sets what Prefect reads when it is imported
