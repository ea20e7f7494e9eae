"""AutoShard's transfer matrices: policies on tasks unlike those that they learned from."""
