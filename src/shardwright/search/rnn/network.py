"""Sequence to sequence with attention: reads the units of a task in both directions, says a device for each.

Shape suffixes: e episodes, t steps, u units, b blocks, d devices, f features, h hidden. All episodes place the same task, so that what the
encoder makes of it has no e.

References:
    [placement] Mirhoseini et al., Device Placement Optimization with Reinforcement Learning, ICML 2017: the architecture and its training.
    [dreamshard] Zha et al., DreamShard, NeurIPS 2022: the same as a baseline, on table features.
    [attention] Luong et al., Effective Approaches to Attention-based Neural Machine Translation, EMNLP 2015: the "general" score.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]
"""Hidden and cell state of the decoder, `(1, e, h)` each."""


class SequenceToSequence(nn.Module):
    """Encoder, decoder and attention over one task.

    The decoder sees the device that it chose last, as in [placement], and also the unit whose turn it is: otherwise attention would first
    have to learn which unit that is. Each unit has an embedding that is trained, as kinds of operations have in [placement], beside its
    features. Both are in favour of the baseline: without them it hardly learns in some thousand plans.

    Args:
        features: f.
        units: u.
        devices: d; each unit and device has weights of its own, so that a network serves one task only.
        hidden: h, even.
    """

    def __init__(self, features: int, units: int, devices: int, hidden: int) -> None:
        super().__init__()
        self.start = devices
        self.block = nn.Linear(features, hidden)
        self.unit = nn.Embedding(units, hidden)
        self.encoder = nn.LSTM(hidden, hidden // 2, bidirectional=True, batch_first=True)
        self.device = nn.Embedding(devices + 1, hidden)
        self.decoder = nn.LSTM(2 * hidden, hidden, batch_first=True)
        self.attention = nn.Linear(hidden, hidden, bias=False)
        self.combine = nn.Linear(3 * hidden, hidden)
        self.head = nn.Linear(hidden, devices)

    def encode(self, features_bf: Tensor, unit_b: Tensor) -> Tensor:
        """`(u, h)` encodings of the units.

        Args:
            features_bf: standardised features of the blocks.
            unit_b: step at which the unit of each block is placed.
        """
        units_uh = self.unit.weight.index_add(0, unit_b, torch.relu(self.block(features_bf)))
        encoded: Tensor = self.encoder(units_uh[None])[0][0]
        return encoded

    def decode(
        self, encoded_uh: Tensor, first: int, device_et: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        """`(e, t, d)` logits of the units from `first` on, and the decoder's state after them.

        Args:
            encoded_uh: what `encode` returned.
            first: step at which the first of the t units is placed.
            device_et: device that was chosen before each of them; `start` before the first of all.
            state: the decoder's state after the steps before; None at the start.
        """
        episodes, steps = device_et.shape
        turn_eth, unit_eth = (
            each[first : first + steps].expand(episodes, -1, -1) for each in (encoded_uh, self.unit.weight)
        )
        hidden_eth, state = self.decoder(torch.cat([turn_eth, self.device(device_et)], dim=2), state)
        weight_etu = torch.softmax(self.attention(hidden_eth) @ encoded_uh.T, dim=2)
        context_eth = weight_etu @ encoded_uh
        logits: Tensor = self.head(torch.tanh(self.combine(torch.cat([hidden_eth, context_eth, unit_eth], dim=2))))
        assert state is not None
        return logits, state
