"""Who answers in an episode: a teacher's endpoint within its budget, or a local model."""
