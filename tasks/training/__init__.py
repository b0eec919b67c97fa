"""Training with TRL: trainers, rollouts, rewards, generation, monitoring, logging."""
