"""`roster load`: a file into a topic."""
