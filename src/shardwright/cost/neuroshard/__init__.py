"""NeuroShard's pre-trained networks (Zha et al., MLSys 2023): compute, forward and backward communication."""

from shardwright.cost.neuroshard.model import CommunicationNetworks, NeuroShardModel, PassLayers

__all__ = ["CommunicationNetworks", "NeuroShardModel", "PassLayers"]
