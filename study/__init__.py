"""The papers' tables, measures and recorded results: what is run with torchcaps, and what came of it."""
