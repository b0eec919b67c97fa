"""Results named by what made them: types, provenance, the local store and the Hub, lineage."""
