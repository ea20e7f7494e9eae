"""The compiled representation that searches work on: pieces as rows of arrays, per-device sums kept incrementally."""
