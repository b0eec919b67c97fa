"""Catch: a ball falls straight down a board; move the paddle under it in time. OpenSpiel's game."""
