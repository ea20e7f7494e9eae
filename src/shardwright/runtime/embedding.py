"""Tiered embeddings: the rows of sequence tables, sharded and replicated as a plan says, looked up and trained by all ranks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from shardwright.errors import InvalidInput
from shardwright.runtime.checks import Load, check_replicas, must_be_same_plan, plan_digest, refusal, wrong_ids
from shardwright.runtime.features import Batch
from shardwright.runtime.hop import Buffers
from shardwright.runtime.lookup import Journey, Lookup
from shardwright.runtime.optimizers import OptimizerOptions
from shardwright.runtime.placement import ALONE, TOUCHED, WHOLE, Placement
from shardwright.runtime.process_groups import Ranks
from shardwright.runtime.ranking import Ranking, chosen_maps
from shardwright.runtime.replicas import TouchedReplicas, WholeReplicas
from shardwright.runtime.storage import InitialRows, Storage, UniformRows
from shardwright.runtime.wire import Rows, TrafficMeter
from shardwright.sharding.plan import Plan
from shardwright.sharding.rank_map import RankMap

_TIMEOUT = timedelta(minutes=10)


class TieredEmbedding(torch.nn.Module):
    """Embeddings of sequence tables, executed as a plan says.

    All ranks make the module with the same plan, and call it in every step, with their own samples. Each call returns what an unsharded
    embedding would; the backward pass sums the gradients of a row over the samples of all ranks and updates the row once, by the plan's
    optimizer, inside the backward pass. Rows differ from rank to rank: wrap only the dense part of a model in DistributedDataParallel,
    which would copy rank 0's to all.

    Attributes:
        plan: the plan.
        tables: names of the tables, in the order of results.
        traffic: bytes that this rank has sent and received.
        storage: the rows of this rank and their optimizer state.
        placement: where every row lies.
        ranking: the rank maps.
        ranks: the process groups.
    """

    def __init__(
        self,
        plan: Plan,
        process_group: dist.ProcessGroup | None = None,
        *,
        tables: Sequence[str] | None = None,
        rank_maps: Mapping[str, RankMap] | None = None,
        device: torch.device | str | None = None,
        learning_rate: float = 0.01,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        initial: InitialRows | int = 0,
        fused: bool = True,
        debug: bool = False,
        timeout: timedelta | float = _TIMEOUT,
    ) -> None:
        """Make the module; a collective: all ranks must.

        Args:
            plan: a plan for `hosts × devices_per_host` ranks.
            process_group: the ranks, by device of the plan; the default group unless given. One process alone needs none. Modules of
                the same ranks and timeout share connections, which last until the default group is destroyed; so call them in the same
                order on all ranks, one at a time. The ranks of a group other than the default one must be in equally many groups.
            tables: the tables to run; all tables of the plan unless given, which must then be sequence tables.
            rank_maps: by table, for tables in order of hotness; the plan's own unless given, else ids are taken for ranks by hotness.
            device: where rows lie; the CPU unless given. gloo wants the CPU, NCCL a GPU.
            learning_rate: of the plan's optimizer.
            eps: of the Adagrads and Adam.
            betas: of Adam.
            initial: a function from a table and `(n,)` ids to `(n, dim)` weights, or the seed of one.
            fused: update rows in the backward pass; else leave summed gradients in the sparse `.grad` of `storage.weights`.
            debug: check after every backward pass that replicas have the same bits.
            timeout: longest wait for another rank, or seconds.

        Raises:
            InvalidInput: the plan cannot be run by this process group, or ranks differ in what they were given; raised on all ranks.
            ShardwrightError: a rank did not come within the timeout.
        """
        super().__init__()
        self.plan, self._debug = plan, debug
        place = torch.device("cpu" if device is None else device)
        wait = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
        self.ranks = Ranks.of(plan.task.topology, process_group, place, wait)
        options = self.ranks.together(lambda: OptimizerOptions(learning_rate, eps, betas))
        names = [table.name for table in plan.task.tables] if tables is None else list(tables)
        placement = self.ranks.together(lambda: Placement.of(plan, names))
        maps = self.ranks.together(lambda: chosen_maps(placement, rank_maps))
        must_be_same_plan(self.ranks, placement, maps, options)
        self.tables = tuple(table.name for table in placement.tables)
        self.traffic = TrafficMeter()
        self.placement, self.ranking = placement, Ranking(placement, maps, self.ranks.device)
        self.storage = Storage(placement, self.ranks.rank, self.ranks.device, options, fused)
        self.storage.initialise(UniformRows(initial) if isinstance(initial, int) else initial, self.ranking)
        self._prepare()
        self.register_load_state_dict_post_hook(_finish_load)  # type: ignore[no-untyped-call]

    @property
    def rank(self) -> int:
        """The device of the plan that this process is."""
        return self.ranks.rank

    def _prepare(self) -> None:
        placement, ranks, meter = self.placement, self.ranks, self.traffic
        adam = placement.plan.task.optimizer == "adam"
        self._lookup = Lookup(placement, ranks, self.storage, meter)
        self._touched = TouchedReplicas(placement, ranks, meter) if (placement.exchanges == TOUCHED).any() else None
        self._whole = (
            WholeReplicas(placement, ranks, meter, flags=adam) if (placement.exchanges == WHOLE).any() else None
        )
        ends = np.cumsum([placement.rows_on(ranks.rank, way) for way in (ALONE, TOUCHED)], axis=0)
        self._cuts = torch.from_numpy(ends.T.copy()).to(ranks.device)
        self._spare = Buffers(ranks.device)
        self._trigger = torch.zeros((), requires_grad=True, device=ranks.device)

    def forward(self, features: Any) -> Mapping[str, Any]:
        """Look up the rows of this rank's samples; a collective: all ranks must, and all must go backward or none.

        Args:
            features: TorchRec's KeyedJaggedTensor whose keys are the tables, or a mapping from table to `(n,)` ids and `(samples,)`
                lengths. Ids are int64, and a table's lengths add up to its number of ids.

        Returns:
            By table, `JaggedRows` with `(n, dim)` fp32 values, or TorchRec's JaggedTensor where a KeyedJaggedTensor came.

        Raises:
            InvalidInput: ids or lengths are wrong on some rank; raised on all of them.
            ShardwrightError: a rank is gone, or did not come within the timeout.
        """
        batch = Batch.of(features, self.tables, self.ranks.device)
        rows: tuple[torch.Tensor, ...] = _Step.apply(self._trigger, self, batch)  # type: ignore[no-untyped-call]
        return batch.result(self.tables, rows, features)

    def check_replicas(self) -> None:
        """Check that all replicas have the same bits; a collective.

        Raises:
            ShardwrightError: some differ.
        """
        check_replicas(self.ranks, self.placement, self.storage)

    def get_extra_state(self) -> dict[str, str]:
        """Which plan and rank a state dict belongs to."""
        return {"plan": plan_digest(self.placement), "rank": str(self.ranks.rank)}

    def set_extra_state(self, state: Any) -> None:
        """Refuse the state of another plan or rank.

        Raises:
            InvalidInput: it is one, or none at all.
        """
        problem = refusal(state, self.get_extra_state())
        if problem is not None:
            raise InvalidInput(problem)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load the state of the same rank and plan; a collective, as is loading the state of a model that this module is a part of.

        Raises:
            InvalidInput: the state of some rank is of another plan or rank, does not fit, or has not the keys of the others;
                raised on all ranks.
            ShardwrightError: replicas differ.
        """
        fits = isinstance(state_dict, Mapping)
        kind = type(state_dict).__name__
        self.ranks.agree(
            None if fits else f"a state dict is a mapping from names to tensors, this is a {kind}; give one"
        )
        return super().load_state_dict(state_dict, strict, assign)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """What torch calls for this module and not for its parts, alone or inside of a model."""
        own = self.get_extra_state()
        state = state_dict.get(f"{prefix}_extra_state", own)  # where there is none it is a missing key
        self.ranks.agree(refusal(state, own))  # before any rank has taken a row
        self._load = Load(error_msgs, (len(error_msgs), len(missing_keys), len(unexpected_keys)))
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _look_up(self, batch: Batch) -> tuple[Journey, Rows]:
        journey = self._lookup.ask(self.ranking, batch.ids, batch.counts, batch.error is not None)
        if journey.failed:
            self.ranks.agree(batch.error or wrong_ids(batch, self.placement))
        return journey, self._lookup.rows(journey)

    def _learn(self, journey: Journey, gradients: Rows) -> None:
        self.storage.step += 1
        slots, sums = self._lookup.gradients(journey, gradients)
        ends = torch.stack([torch.searchsorted(*pair) for pair in zip(slots, self._cuts, strict=True)]).tolist()
        bounds = [[0, *own, one.numel()] for own, one in zip(ends, slots, strict=True)]
        for part, replicas in enumerate((None, self._touched, self._whole)):
            if part > 0 and replicas is None:
                continue
            own_slots, own_sums = (
                [matrix[its[part] : its[part + 1]] for matrix, its in zip(matrices, bounds, strict=True)]
                for matrices in (slots, sums)
            )
            if replicas is not None:
                own_slots, own_sums = replicas.agree(own_slots, own_sums)
            for group, (index, rows) in enumerate(zip(own_slots, own_sums, strict=True)):
                self.storage.learn(group, index, rows)
        if self._debug:
            self.check_replicas()


def _finish_load(module: TieredEmbedding, keys: Any) -> None:
    """What torch calls once this module and its parts are loaded, alone or inside of a model."""
    module._load.finish(module.ranks, keys.missing_keys, keys.unexpected_keys)
    module.check_replicas()


class _Step(torch.autograd.Function):
    """One step as autograd sees it: the lookups of all tables, and in its backward pass their gradients' way to the holders."""

    @staticmethod
    def forward(ctx: Any, trigger: torch.Tensor, module: TieredEmbedding, batch: Batch) -> tuple[torch.Tensor, ...]:
        ctx.module = module
        ctx.journey, rows = module._look_up(batch)
        counts = [batch.counts[tables] for tables in module.placement.tables_of_group]
        return tuple(part for matrix, own in zip(rows, counts, strict=True) for part in matrix.split(own))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        module, placement = ctx.module, ctx.module.placement
        by_group = []
        with torch.no_grad():
            for group, (tables, width) in enumerate(zip(placement.tables_of_group, placement.widths, strict=True)):
                parts = gradients[tables]
                out = module._spare.take(group, sum(part.shape[0] for part in parts), width)
                by_group.append(torch.cat(parts, out=out))
            module._learn(ctx.journey, by_group)
        return None, None, None
