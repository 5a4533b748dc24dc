"""What a benchmark found: on the terminal, and as a page."""
