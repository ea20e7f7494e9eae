"""NeuroShard's pre-trained networks (Zha et al., MLSys 2023): compute, forward and backward communication."""

from shardwright.cost.neuroshard.communication import CommunicationNetworks, PassLayers
from shardwright.cost.neuroshard.model import NeuroShardModel

__all__ = ["CommunicationNetworks", "NeuroShardModel", "PassLayers"]
