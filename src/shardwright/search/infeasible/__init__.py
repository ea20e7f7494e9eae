"""Proofs that no plan of a task exists."""

from shardwright.search.infeasible.proof import prove_infeasible

__all__ = ["prove_infeasible"]
