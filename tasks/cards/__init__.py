"""The README of every artifact, for strangers."""
