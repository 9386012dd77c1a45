"""What a finished run has learned, as a page of its own."""
