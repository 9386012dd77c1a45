"""Heinsen's routing of vectors (Heinsen 2022)."""
