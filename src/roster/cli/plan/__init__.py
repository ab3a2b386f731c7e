"""`roster plan`: what an assignor would do, with problems from JSON lines or with a live group."""
