"""What is measured: a module for each peer, for the limits, and for this project."""
