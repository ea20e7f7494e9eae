"""NeuroShard's experiments: all strategies on its benchmark's tasks, and on tables of a production model's size."""
