"""Charts of measures and tables."""
