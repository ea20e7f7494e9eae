"""The papers' experiments, run again: what `shardwright reproduce` runs, and the tables and pictures it writes."""
