"""The runtime of a run: servers, store, Prefect server, the GPU stages' work pool."""
