"""Heinsen's routing of matrices (Heinsen 2019)."""
