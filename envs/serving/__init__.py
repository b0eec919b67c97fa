"""The servers' processes: our own, a container, the scripted teacher's endpoint."""
