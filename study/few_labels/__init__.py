"""Classes from a few labelled examples, by way of what was learned without labels: ``torchcaps few-labels RUN``."""
