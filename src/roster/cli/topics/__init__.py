"""`roster topics`: the topics of a cluster."""
