"""Learning cost models: samples as arrays, training, adaptation to a machine, accuracy on held-out sets, links fitted to measured times."""
