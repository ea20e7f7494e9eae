"""The policy that AutoShard and DreamShard share: it reads predictions of the task's cost model, so it serves every device and model."""
