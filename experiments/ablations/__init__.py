"""Ablations: searches that lack one of their parts at a time, and the convex head against the mlp head."""
