"""FlexShard's traffic: bytes between hosts and communication time of sequence tables."""
