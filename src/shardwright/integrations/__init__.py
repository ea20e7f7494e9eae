"""Shardwright inside other libraries."""
