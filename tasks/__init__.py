"""What is done to artifacts: one file a stage, named by its verb, and what the stages share."""

import apprentice.envs  # noqa: F401  # sets what Prefect reads when it is imported
