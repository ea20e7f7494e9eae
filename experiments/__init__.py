"""Reruns of the papers' experiments: `python -m experiments NAME` makes the pages, pictures and rows in benchmarks/results."""
