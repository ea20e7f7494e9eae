"""Questions about plans: review of a plan, how many devices, which group size, drift of traffic. Each asks `shardwright.plan`."""
