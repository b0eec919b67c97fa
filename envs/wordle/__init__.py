"""Wordle: a secret word of five letters, six guesses, and after each what was right about it."""
