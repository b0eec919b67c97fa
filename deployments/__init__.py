"""Deployments: recipes, work pools, schedules, images, and the folders of Spaces."""

import apprentice.envs  # noqa: F401  # sets environment variables that Prefect reads at import time
