"""The server: an OpenEnv server of one or more environments of the `verifiers` package."""
