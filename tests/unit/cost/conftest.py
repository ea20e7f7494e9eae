"""Trained models, as `tests/unit/modelling` has them."""

from tests.unit.modelling.conftest import samples, trained, trained_by_head, trained_convex

__all__ = ["samples", "trained", "trained_by_head", "trained_convex"]
