"""Inside TRL: trainers, rollouts, rewards, generation, what is watched and logged."""
