"""Shared parts of the strategies that learn a policy: tasks as arrays, the batched environment, and worlds that price placements."""
