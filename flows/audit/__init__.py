"""Audits an environment: what about it would spoil a training, with evidence and remedy."""
