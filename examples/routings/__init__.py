"""A routing of another paper, written as one class in one file."""
