"""Cost prediction: features, compute and communication models, plan scores, bundled models."""

from shardwright.cost.choice import cost_model_for, resolve_cost_model
from shardwright.cost.files import bundled_models, load_model, save_model
from shardwright.cost.model import ComputeModel, CostModel
from shardwright.cost.published import PublishedModel
from shardwright.cost.score import communication_ms, compute_ms, device_ms, score, scored, traffic

__all__ = [
    "ComputeModel",
    "CostModel",
    "PublishedModel",
    "bundled_models",
    "communication_ms",
    "compute_ms",
    "cost_model_for",
    "device_ms",
    "load_model",
    "resolve_cost_model",
    "save_model",
    "score",
    "scored",
    "traffic",
]
