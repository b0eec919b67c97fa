"""Any environment of the `verifiers` package: its dataset's rows, its tools, its rubric's reward."""
