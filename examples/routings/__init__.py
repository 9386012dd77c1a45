"""Routings of other papers, each written as one class in one file."""
