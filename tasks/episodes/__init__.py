"""One played episode: its turns, its record, its token ids, and its question."""
