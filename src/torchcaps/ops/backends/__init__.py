"""Routings that never store the votes: which compiled code runs them, how it is built, and whether it is right."""
