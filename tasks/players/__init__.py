"""The models that play episodes: a teacher's endpoint within its budget, or a local checkpoint."""
