"""Ablations: searches without one of their parts at a time, and the convex head against the mlp head."""
