"""Analysis without torch: statistics, slices, signals, contamination, judgements."""
