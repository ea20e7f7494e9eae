"""Measuring programs; each writes a dated page to `results/`. Run them from the repository's root: `python -m benchmarks.NAME`."""
