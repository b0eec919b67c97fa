"""What a recipe says: one frozen settings model a section."""
