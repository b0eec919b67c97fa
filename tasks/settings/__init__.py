"""Recipe settings: one frozen model per section."""
