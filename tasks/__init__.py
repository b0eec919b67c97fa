"""The stages, in files named by what they do, and the packages that they share."""

import apprentice.envs  # noqa: F401  # sets what Prefect reads when it is imported
