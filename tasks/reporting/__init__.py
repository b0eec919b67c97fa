"""What a run tells: terminal, Prefect, log, errors and which of them pass."""
