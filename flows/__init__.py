"""How it is put together: the recipe, the run from top to bottom, the command line."""

import apprentice.envs  # noqa: F401  # sets what Prefect reads when it is imported
