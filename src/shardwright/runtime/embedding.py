"""Sharded embeddings: all ranks together look up and train pooled and sequence tables, sharded and replicated by any plan."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from shardwright.errors import InvalidInput
from shardwright.runtime.checks import (
    check_replicas,
    difference_of_replicas,
    must_be_same_plan,
    usable_device,
    wrong_ids,
)
from shardwright.runtime.features import RankBatch, features_of
from shardwright.runtime.lookup import Journey, Lookup
from shardwright.runtime.optimizers import Optimizer
from shardwright.runtime.placement import ALONE, TOUCHED, WHOLE, Placement
from shardwright.runtime.process_groups import Ranks
from shardwright.runtime.ranking import Ranking, chosen_maps
from shardwright.runtime.replicas import TouchedReplicas, WholeReplicas
from shardwright.runtime.state import optimizer_state_of, weights_of
from shardwright.runtime.storage import InitialRows, Storage, UniformRows
from shardwright.runtime.wire import Buffers, Rows, TrafficMeter
from shardwright.sharding.plan import Plan
from shardwright.sharding.rank_map import RankMap
from shardwright.task.quantities import checked_number

_TIMEOUT = timedelta(minutes=10)
_sender = ThreadPoolExecutor(1, "shardwright-prefetch")
_leaving: set[Future[Journey]] = set()
"""The batch that is leaving ahead, of any module: modules share connections, so each waits for the one before."""


class _Sent(NamedTuple):
    """A batch whose ids travel: the given features, what was read of them, and a function that waits for the way of its lookups."""

    features: Any
    batch: RankBatch
    journey: Callable[[], Journey]


class ShardedEmbeddings(torch.nn.Module):
    """Embeddings of pooled and sequence tables, in any blocks, sharded and replicated by a plan.

    Every rank creates the module with the same plan and calls it in every step with its own samples. Each call returns what unsharded
    embeddings would return. The backward pass sums the gradients of a row over the samples of all ranks, and updates the row once with the
    plan's optimizer. Rows differ between ranks, so wrap only the dense part of a model in DistributedDataParallel: it would copy rank 0's
    rows to all ranks.

    Sums have a fixed order. Tables that are whole, or cut by columns, give the same bits on any number of ranks; if FBGEMM is installed,
    blocks of a multiple of 4 columns do, and the others among themselves. So do row blocks of sequence tables, and with `exact` those of
    pooled tables; else the sums of a bag's row blocks are added, which rounds differently. Gradients of a row are added lookup by lookup,
    rank after rank; those of replicas, and of repeated rows that travel once, are summed on each rank first. Each block of columns has a
    separate row-wise Adagrad state, as in TorchRec.

    Attributes:
        plan: the plan.
        rank: the plan's device that this process runs.
        tables: the tables that this module runs.
        features: the features, in the order of results.
        traffic: bytes that this rank has sent and received.
        storage: rows of this rank and their optimizer state.
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
        features: Mapping[str, Sequence[str]] | None = None,
        rank_maps: Mapping[str, RankMap] | None = None,
        device: torch.device | str | None = None,
        learning_rate: float = 0.01,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        initial: InitialRows | int = 0,
        fused: bool = True,
        exact: bool = False,
        debug: bool = False,
        timeout: timedelta | float = _TIMEOUT,
    ) -> None:
        """Create the module; a collective: all ranks must call it.

        Args:
            plan: a plan for `hosts × devices_per_host` ranks.
            process_group: the ranks, in the order of the plan's devices; the default group unless given. A single process needs none.
                Modules with the same ranks and timeout share connections until the default group is destroyed. So call such modules in
                the same order on all ranks, one at a time. All ranks of a group other than the default must be in equally many groups.
            tables: the tables to run; all tables of the plan unless given.
            features: by table, the names of its features in the order of `Table.poolings`. A table of one feature gives it its own name.
            rank_maps: maps of tables in order of hotness; the plan's own unless given. Without a map, ids count as ranks by hotness.
            device: where rows lie; the CPU unless given. gloo needs the CPU, NCCL a GPU.
            learning_rate: learning rate of the plan's optimizer.
            eps: ε of the Adagrads and Adam.
            betas: β₁ and β₂ of Adam.
            initial: a function from a table and `(n,)` ids to `(n, dim)` weights, the same on all ranks, or the seed for uniform weights.
            fused: whether the backward pass updates rows, by FBGEMM's fused kernels if it is installed; else it leaves summed gradients in
                the sparse `.grad` of `storage.weights`.
            exact: whether all plans round alike: for pooled tables cut by rows, rows travel instead of sums, and torch's kernels do the
                updates.
            debug: check after every backward pass that replicas have the same bits.
            timeout: longest wait for another rank, as a timedelta or in seconds.

        Raises:
            InvalidInput: this process group cannot run the plan, or ranks got different arguments; raised on all ranks.
            ShardwrightError: a rank did not arrive within the timeout.
        """
        super().__init__()
        if not isinstance(plan, Plan):
            raise InvalidInput(
                f"plan is a {type(plan).__name__}, must be a shardwright.Plan; read a plan file with Plan.load"
            )
        self.plan, self._debug = plan, debug
        place = usable_device(device)
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        longest = timedelta(seconds=checked_number(seconds, "timeout"))
        self.ranks = Ranks.of(plan.task.topology, process_group, place, longest)
        optimizer = self.ranks.together(lambda: Optimizer(plan.task.optimizer, learning_rate, eps, betas))
        names = [table.name for table in plan.task.tables] if tables is None else list(tables)
        placement = self.ranks.together(lambda: Placement.of(plan, names, exact))
        self.rank, self.tables = self.ranks.rank, [plan.task.table_by_name[name] for name in names]
        self.features = self.ranks.together(lambda: features_of(self.tables, features))
        maps = self.ranks.together(lambda: chosen_maps(placement, rank_maps))
        must_be_same_plan(self.ranks, placement, maps, optimizer, self.features, (fused, exact, debug))
        self.traffic = TrafficMeter()
        self.placement, self.ranking = placement, Ranking(placement, maps, place)
        self.storage = Storage(placement, self.rank, place, optimizer, fused, exact)
        self.ranks.together(lambda: self.storage.initialise(_rows_of(initial), self.ranking))
        if difference := difference_of_replicas(self.ranks, placement, self.storage):
            raise InvalidInput(f"{difference}; let initial give all ranks the same weights of a row")
        self._lookup = Lookup(placement, self.ranks, self.storage, self.traffic)
        kinds: dict[int, type[TouchedReplicas | WholeReplicas]] = {TOUCHED: TouchedReplicas, WHOLE: WholeReplicas}
        self._replicas = {
            way: kind(placement, self.ranks, self.traffic) for way, kind in kinds.items() if way in placement.exchanges
        }
        ends = np.cumsum([placement.rows_on(self.rank, way) for way in (ALONE, TOUCHED)], axis=0)
        self._cuts = torch.from_numpy(ends.T.copy()).to(place)
        self._spare = Buffers(place)
        self._trigger = torch.zeros((), requires_grad=True, device=place)
        self._ahead: _Sent | None = None

    def prefetch(self, features: Any) -> None:
        """Send the ids of the next batch ahead, before the backward pass of this one; a collective: all ranks must call it.

        Rows are read when the module is called, so results do not change. With gloo a thread sends the ids meanwhile, one module at a time;
        a process that ends waits for it, at most the module's timeout. With other backends this returns when the ids have left.

        Args:
            features: as of `forward`. The module takes them from the batch ahead when it is called with the same object, which must not
                change until then. It may be called with other batches before. None on all ranks drops the batch that was sent ahead.

        Raises:
            InvalidInput: another batch was sent ahead before, and the module was not called with it.
        """
        if features is None:
            self._ahead = None
            return
        if self._ahead is not None:
            raise InvalidInput(
                "prefetch: another batch was sent ahead before; first call the module with the object that prefetch got, "
                "or drop that batch on all ranks by prefetch(None)"
            )
        sent, world = self._sent(features), self.ranks.world
        if world.group is None or world.back is not None:  # messages have tags
            journey = _sender.submit(sent.journey)
            _leaving.add(journey)
            journey.add_done_callback(_leaving.discard)
            self._ahead = sent._replace(journey=journey.result)
        else:
            arrived = sent.journey()
            self._ahead = sent._replace(journey=lambda: arrived)

    def forward(self, features: Any) -> Mapping[str, Any]:
        """Look up the rows of this rank's samples; a collective: all ranks must call it, and either all go backward or none.

        Args:
            features: TorchRec's KeyedJaggedTensor with the features among its keys, or a mapping from feature to `(n,)` ids and
                `(samples,)` lengths, and `(n,)` weights for weighted tables. Ids are int64, and the lengths of a feature add up to its
                number of ids. Ranks and features may have different numbers of samples, also none.

        Returns:
            By feature: `(samples, dim)` fp32 sums of a pooled table; of a sequence table `JaggedRows` with `(n, dim)` fp32 values, or
            TorchRec's JaggedTensor if a KeyedJaggedTensor was given.

        Raises:
            InvalidInput: ids or lengths are wrong on some rank; raised on all ranks. Or torch is in inference mode.
            ShardwrightError: a rank has ended, or did not arrive within the timeout.
        """
        if self._ahead is not None and self._ahead.features is features:
            sent, self._ahead = self._ahead, None
        else:
            sent = self._sent(features)
        rows: tuple[torch.Tensor, ...] = _Step.apply(self._trigger, self, sent)  # type: ignore[no-untyped-call]
        return sent.batch.result(self.features, self.placement, rows, features)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, for a copy.

        Raises:
            InvalidInput: a batch was sent ahead.
        """
        if self._ahead is not None:
            raise InvalidInput(
                "a batch was sent ahead; call the module with it, or drop it by prefetch(None), before the module is copied"
            )
        return dict(self.__dict__)

    def check_replicas(self) -> None:
        """Check that all replicas have the same bits; a collective.

        Raises:
            ShardwrightError: some replicas differ.
        """
        check_replicas(self.ranks, self.placement, self.storage)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Give the weights by table; torch calls it for this module, alone or inside a model."""
        destination.update({prefix + name: blocks for name, blocks in weights_of(self).items()})

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
        """Load the weights of this rank's blocks; torch calls it for this module, alone or inside a model."""
        own = {prefix + name: blocks for name, blocks in weights_of(self).items()}
        missing_keys += [name for name in own if name not in state_dict]
        if strict:
            unexpected_keys += [name for name in state_dict if name.startswith(prefix) and name not in own]
        with torch.no_grad():
            problems = [blocks.copy_from(state_dict[name]) for name, blocks in own.items() if name in state_dict]
        error_msgs += [problem for problem in problems if problem is not None]

    def optimizer_state_dict(self, prefix: str = "") -> dict[str, Any]:
        """Return the optimizer's states by table, in the form and under the names of TorchRec's fused optimizers.

        Args:
            prefix: name of this module inside a model, with a dot at its end.

        Raises:
            InvalidInput: a table counts its rows by hotness.
        """
        state = {prefix + name: dict(kinds) for name, kinds in optimizer_state_of(self).items()}
        return {"state": state, "step": self.storage.step.clone()}

    def load_optimizer_state_dict(self, state: Mapping[str, Any], prefix: str = "") -> None:
        """Load the blocks that `optimizer_state_dict` returned, or whole tensors. If `state` has no step, the module keeps its own.

        Args:
            state: the states.
            prefix: name of this module inside a model, with a dot at its end.

        Raises:
            InvalidInput: states are missing or belong to other blocks.
        """
        problems = []
        with torch.no_grad():
            for name, kinds in optimizer_state_of(self).items():
                for kind, blocks in kinds.items():
                    value = state.get("state", {}).get(prefix + name, {}).get(kind)
                    missing = f"no state '{kind}' of '{prefix + name}'; save it with the weights"
                    problems.append(missing if value is None else blocks.copy_from(value))
            if any(problems):
                raise InvalidInput("; ".join(problem for problem in problems if problem is not None))
            self.storage.step.copy_(state.get("step", self.storage.step))

    def _sent(self, features: Any) -> _Sent:
        """Get ready to send the ids of a batch; its function sends them."""
        if torch.is_inference_mode_enabled():
            raise InvalidInput(
                "FBGEMM's training kernels do not run in torch.inference_mode(); call the module in torch.no_grad()"
            )
        wait(_leaving)
        self._lookup.expect()
        batch = RankBatch.of(features, self.features, self.placement, self.ranks.device)
        return _Sent(features, batch, partial(self._lookup.ask, self.ranking, batch))

    def _look_up(self, sent: _Sent) -> tuple[Journey, Rows]:
        journey, batch = sent.journey(), sent.batch
        if journey.failed:
            self.ranks.agree(batch.error or wrong_ids(batch, self.placement))
        return journey, self._lookup.outputs(journey, batch.outputs[self.placement.row_groups :])

    def _learn(self, journey: Journey, gradients: Rows) -> None:
        self.storage.step.add_(1)
        slots, sums = self._lookup.gradients(journey, gradients)
        bounds = [[0, its.numel()] for its in slots]
        if self._replicas:
            ends = torch.stack([torch.searchsorted(*pair) for pair in zip(slots, self._cuts, strict=True)]).tolist()
            bounds = [[0, *own, its.numel()] for own, its in zip(ends, slots, strict=True)]
        for way in (ALONE, *self._replicas):
            own_slots, own_sums = (
                [matrix[its[way] : its[way + 1]] for matrix, its in zip(matrices, bounds, strict=True)]
                for matrices in (slots, sums)
            )
            if way != ALONE:
                own_slots, own_sums = self._replicas[way].agree(own_slots, own_sums)
            for group, (index, rows) in enumerate(zip(own_slots, own_sums, strict=True)):
                self.storage.learn(group, index, rows)
        if self._debug:
            self.check_replicas()


def _rows_of(initial: InitialRows | int) -> InitialRows:
    """The function that gives initial weights.

    Raises:
        InvalidInput: it is neither a function nor a seed.
    """
    if callable(initial):
        return initial
    try:
        return UniformRows(operator.index(initial))
    except TypeError:
        raise InvalidInput(f"initial is {initial!r}, must be a function of a table and ids, or a seed") from None


class _Step(torch.autograd.Function):
    """One step as autograd sees it. Forward looks up all tables; backward sends the gradients of the outputs to the holders."""

    @staticmethod
    def forward(ctx: Any, trigger: torch.Tensor, module: ShardedEmbeddings, sent: _Sent) -> tuple[torch.Tensor, ...]:
        ctx.module = module
        ctx.journey, rows = module._look_up(sent)
        ctx.pieces = sent.batch.pieces
        parts = [part for matrix, own in zip(rows, ctx.pieces, strict=True) for part in matrix.split_with_sizes(own)]
        # As tensors of their own on the same memory: autograd lets nobody change views of one tensor in place.
        return tuple(part.new_empty(0).set_(part) for part in parts)  # type: ignore[call-overload]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        module, by_group, parts = ctx.module, [], iter(gradients)
        with torch.no_grad():
            for number, (pieces, group) in enumerate(zip(ctx.pieces, module.placement.groups, strict=True)):
                out = module._spare.take(number, sum(pieces), group.dim)
                by_group.append(torch.cat([next(parts) for _ in pieces], out=out))
            module._learn(ctx.journey, by_group)
        return None, None, None
