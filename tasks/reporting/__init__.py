"""What a run reports: terminal, Prefect, log, errors, and which failures are retried."""
