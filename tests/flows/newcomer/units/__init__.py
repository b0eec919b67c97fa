"""Convert a number: look its unit up, then hand in the number times the unit's factor."""
