"""What the experiments about learned placement share: tasks, entrants, training of policies, a bound on kernel times."""
