"""The policy that AutoShard and DreamShard share: it reads what the task's cost model predicts, so it serves every device and model."""
