"""Reasoning Gym's procedural questions: one question, one answer, checked by an algorithm."""
