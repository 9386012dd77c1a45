"""Classes from a few labels, by way of what was learned without any: ``python -m study few-labels RUN``."""
