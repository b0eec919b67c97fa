"""Analysis without torch: comparisons, kinds, signals, judgements, and a project's history."""
