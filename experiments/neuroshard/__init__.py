"""NeuroShard's experiments: all strategies on the tasks of its benchmark, and on tables of a production model's size."""
