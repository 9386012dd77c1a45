"""Figures of what the rest of this package computes. Matplotlib is imported when the first is drawn."""
