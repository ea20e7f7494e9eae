"""Use Shardwright inside other libraries."""
