"""The report page: its data, its HTML, its pictures, and the lineage as a tree."""
