"""The report page and the lineage tree."""
