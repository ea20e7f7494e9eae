"""The papers' experiments, run again: `python -m experiments NAME` makes the pages, pictures and rows in benchmarks/results."""
