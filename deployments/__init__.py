"""Where it runs: recipes, and later the pools and schedules."""
