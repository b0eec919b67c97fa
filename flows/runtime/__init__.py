"""Where a run happens: servers, store, Prefect server, the GPU stages' work pool."""
