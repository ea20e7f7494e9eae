"""What the strategies that learn a policy share: tasks as arrays, the batched environment, worlds that say what placements cost."""
