"""Shared parts of the experiments on learned placement: tasks, entrants, training of policies, a bound on kernel times."""
