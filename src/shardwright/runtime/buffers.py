"""Memory that is used again in every step: fresh pages for every message would cost more than filling them."""

from __future__ import annotations

from collections.abc import Hashable

import torch


class Buffers:
    """Matrices by name, on one torch device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spare: dict[Hashable, torch.Tensor] = {}

    def take(self, name: Hashable, rows: int, width: int) -> torch.Tensor:
        """A `(rows, width)` fp32 matrix of unknown content, valid until the name is taken again."""
        spare = self._spare.get(name)
        if spare is None or spare.numel() < rows * width:
            spare = torch.empty(rows * width + rows * width // 8, device=self._device)
            self._spare[name] = spare
        return spare[: rows * width].view(rows, width)
