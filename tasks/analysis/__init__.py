"""Figures without torch: statistics, slices, signals, contamination, judgements."""
