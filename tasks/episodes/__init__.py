"""One played episode: its turns, its record, its token ids, and the questions it answers."""
