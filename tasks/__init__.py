"""The stages, one file each and named by its verb, and the packages that they share."""

import apprentice.envs  # noqa: F401  # sets what Prefect reads when it is imported
