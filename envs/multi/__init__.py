"""Several environments in one run, each question of one of them."""
