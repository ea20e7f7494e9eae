"""What no function and no options take: the message names the argument, its value and the rule.

`tests/unit/task/test_bad_objects.py` has the objects of a task, `tests/unit/cli/test_cli_bad_input.py` the command lines.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost.published import PublishedModel
from shardwright.errors import InvalidInput
from shardwright.learned.options import AutoShardOptions, DreamShardOptions
from shardwright.learned.rnn import RnnOptions
from shardwright.measure.collectives.rank import RunPolicy
from shardwright.measure.collectives.sampling import CollectiveSpace
from shardwright.measure.measuring import measure_plans, measure_works
from shardwright.measure.sampling import Breadth, SampleSpace
from shardwright.measure.stock import Collection, seconds_or_default
from shardwright.measure.timing import TimingPolicy
from shardwright.modelling.neuroshard_training import NeuroShardOptions
from shardwright.modelling.training import TrainingOptions
from shardwright.questions.group_sizes import plan_groups
from shardwright.questions.scale import DenseWork
from shardwright.search.certified import Certified
from shardwright.search.exact import Exact
from shardwright.search.neuroshard import NeuroShard
from shardwright.sharding.rank_map import RankMap
from shardwright.task import AccessProfile, Constraints, Exchange, LinkSpeed, ShardingGroups, Table, Topology
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of
from shardwright.workload.generators import paper_tasks, public_model, public_task, random_task, split_pool, table_pool

MODEL, TASK, NAN, INF = SimpleCostModel(), task_of(3, 2), math.nan, math.inf
POOL = tuple(Table(f"t{i}", 100 * (i + 1), 16, pooling=1.0 + i) for i in range(6))
LARGE = (Table("large", 1_000_000, 4),)
PLAN = sw.plan(TASK, strategy="greedy", cost_model=MODEL)


def with_defaults(make: Callable[..., object], *args: Any, **given: Any) -> Callable[..., object]:
    return lambda **fields: make(*args, **(given | fields))


planned = with_defaults(sw.plan, TASK, cost_model=MODEL)
drawn = with_defaults(random_task, 0, pool=POOL, tables=2)
dense = lambda dense_ms: Exchange(dense_ms=dense_ms)  # noqa: E731
scaled = with_defaults(sw.scale, TASK, topologies=[Topology(1, 2)], cost_model=MODEL)
groups = with_defaults(ShardingGroups, hosts=2, devices_per_host=4)
collective = with_defaults(CollectiveSpace, pool=POOL, world=4)
SEED = "must be a whole number of at least 0"

# What is called, the argument, its bad values, and what the message must name; "{}" is the value, "…" stands for anything.
CASES: list[tuple[Callable[..., object], str, list[Any], str]] = [
    (planned, "strategy", [None, 5, object()], "strategy is … must be a name of strategy_names()"),
    (with_defaults(AccessProfile.zipf, exponent=0), "rows", [0, -5, 2.5, True, "10", None, NAN, 2**62 + 1, 10**400],
     "rows of a zipf profile is … must be a whole number from 1 to"),
    (with_defaults(AccessProfile.zipf, exponent=1), "rows", [0, -5, 2.5, True, "10", None, NAN, 2**62 + 1, 10**400],
     "rows of a zipf profile is … must be a whole number from 1 to"),
    (with_defaults(AccessProfile.zipf, 100), "exponent", [-0.1, NAN, INF, 1e308, "1", None, True],
     "zipf exponent … must be a number from 0 (uniform) to 100"),
    (AccessProfile.uniform, "rows", [0, -1, NAN, INF, "10", True],
     "rows of a uniform profile is {}, must be a finite number greater than 0"),
    (with_defaults(AccessProfile.from_counts, [1, 2]), "rows", [0, -1, 2.5, True, "4"], "access: rows is {}, must be a whole number"),
    (with_defaults(AccessProfile.from_counts, [1, 2, 3]), "rows", [2],
     "access: 3 counts for rows 2; there may be at most one count per row"),
    (AccessProfile.from_counts, "counts", [["a"], [[1], [2, 3]], {1: 2}], "access: counts is … must be a list or array of numbers"),
    (AccessProfile.from_counts, "counts", [[], [0, 0], [1, -1], [1, NAN], [INF]], "counts must hold at least one access"),
    (Table("t", 1000, 8).scaled_rows, "factor", [0, -1, NAN, INF, "2", None, True], "must be a finite number greater than 0"),
    (Table("t", 1000, 8, access=AccessProfile.zipf(1000, 1.1)).scaled_rows, "factor", [1e15, 1e308], "are more than 2**50 elements"),
    (Table("t", 1000, 8, access=AccessProfile.from_counts([5, 3], 1000)).scaled_rows, "factor", [1e15, 1e308],
     "are more than 2**50 elements"),
    (Topology.preset, "name", ["h100-16", "h100-0", "gb200-4", "cpu-4", "-4", ["h100-8"], None, 8], "unknown preset"),
    (Topology.preset, "name", ["h100"], "unknown preset 'h100'; known presets are cpu, … h100-8"),
    (with_defaults(Topology.preset, "h100-8", hosts=2), "hostz", [4],
     "topology: unknown attribute 'hostz'; known attributes are hosts, devices_per_host, … inter_latency_ms"),
    (Exchange, "deduplicate", ["rack"], "deduplicate is 'rack', must be one of none, device, host"),
    (Exchange, "conversion", ["codecs"], "conversion is 'codecs'"),
    (dense, "dense_ms", [-1, NAN], "exchange: dense_ms is {}, must be a finite number of at least 0"),
    (Constraints, "colocate", [((),), (("a",),), (("a", "a"),)], "colocate [ … ] must name at least two different tables"),
    (Constraints, "apart", [((),), (("a",),), (("a", "a"),)], "apart [ … ] must name at least two different tables"),
    (groups, "size", [3], "size is 3, must divide the 8 devices: one of 1, 2, 4, 8"),
    (groups, "size", [0], "size is 0"),
    (with_defaults(groups, size=2), "sync_interval", [0], "sync_interval is 0"),
    (with_defaults(groups, size=2, fully_sharded=True), "sync_interval", [5], "leave it 1"),
    (with_defaults(groups, size=2), "hosts", [10**12], "at most 65536"),
    (with_defaults(LinkSpeed, bandwidth=1e9), "latency_ms", [-1.0], "links: "),
    (with_defaults(LinkSpeed, latency_ms=0.1), "bandwidth", [0.0, NAN], "links: "),
    (with_defaults(RankMap, 3), "hottest", [np.arange(4)], "4 hottest ids for a table of 3 rows"),
    (with_defaults(RankMap, 3), "hottest", [np.array([0, 3])], "ids from 0 to 3 for a table of 3 rows"),
    (with_defaults(RankMap, 3), "hottest", [np.array([-1])], "ids from -1 to -1"),
    (with_defaults(RankMap, 3), "hottest", [np.array([2, 2])], "an id occurs twice"),
    (PublishedModel, "device", ["abacus"], "no figures of device 'abacus'; known are rtx2080ti"),
    (planned, "time_limit", [-1, -0.5, NAN, INF, "5", True, [5]], "time_limit is {}, must be a finite number of seconds of at least 0"),
    (planned, "gap", [-0.1, NAN, INF, "1", True], "gap is {}, must be a finite number of at least 0, such as 0.01 for 1%"),
    (planned, "strategy", ["best"], "unknown strategy 'best'"),
    (planned, "seed", [-1], "seed is -1"),
    (planned, "cost_model", ["no/such/model.safetensors"], "there is no such cost model"),
    (planned, "runs_on", ["hugectr"], "runs_on is 'hugectr', must be auto, shardwright or torchrec"),
    (planned, "move_cost", [1.0], "there is no plan to start from"),
    (with_defaults(planned, strategy="certified", start=PLAN), "move_cost", [-1.0, NAN, "5", True],
     "move_cost is {} … must be a number of ms per GB"),
    (with_defaults(planned, start=PLAN), "strategy", ["greedy", "random", "neuroshard"],
     "strategy {} cannot start from a plan; use one that can, such as certified"),
    (with_defaults(planned, gap=0.01), "strategy", ["greedy"], "strategy 'greedy' proves no gap while it searches; use auto or certified"),
    (Certified, "tolerance", [-0.1, NAN, INF, "1", None, True], "certified: tolerance is {}, must be a finite number of at least 0"),
    (Certified, "patience", [-1, 1.5, "4", True], "certified: patience is {}, must be a whole number of at least 0"),
    (Certified, "threads", [0, -1, 2.0, "2", None, True], "certified: threads is {}, must be a whole number of at least 1"),
    (NeuroShard, "tables_tried", [0, 2.5, None], "neuroshard: tables_tried is {}, must be"),
    (NeuroShard, "beam_width", [True, 0], "neuroshard: beam_width is {}, must be"),
    (NeuroShard, "most_splits", [-1], "neuroshard: most_splits is -1, must be"),
    (NeuroShard, "grid", [0], "neuroshard: grid is 0, must be"),
    (NeuroShard, "threads", [0], "neuroshard: threads is 0, must be"),
    (NeuroShard, "widest_bound", [0.9, True], "neuroshard: widest_bound is {}, must be"),
    (NeuroShard, "score", ["steps"], "neuroshard: score is 'steps', must be"),
    (Exact, "tolerance", [-1.0, True], "tolerance"),
    (Exact, "units_per_table", [0, 2.5], "units_per_table"),
    (Exact, "max_nodes", [0], "max_nodes"),
    (scaled, "topologies", [[]], "at least one cluster"),
    (scaled, "prices", [{"cpu": -1.0}], "prices: cpu is -1.0"),
    (scaled, "prices", [{"cpu": NAN}], "finite"),
    (DenseWork, "ms", [-1.0, INF, True, "5"], "dense_ms"),
    (with_defaults(sw.drift, PLAN, TASK.tables, cost_model=MODEL), "worth_it", [-0.1, 1.0, NAN, True], "worth_it"),
    (with_defaults(plan_groups, TASK, cost_model=MODEL), "time_limit", [-1.0, NAN, True], "time_limit"),
    (with_defaults(plan_groups, task_of(3, 8), cost_model=MODEL), "sharding_group_size", [3], "size is 3, must divide the 8 devices"),
    (AutoShardOptions, "steps", [0], "steps"),
    (AutoShardOptions, "batch", [1.5], "batch"),
    (AutoShardOptions, "lag", [True], "lag"),
    (AutoShardOptions, "seed", [-1], "seed"),
    (AutoShardOptions, "learning_rate", [NAN], "learning_rate"),
    (AutoShardOptions, "entropy_weight", [-1.0], "entropy_weight"),
    (DreamShardOptions, "iterations", [0], "iterations is"),
    (DreamShardOptions, "episodes", [1], "episodes is"),
    (DreamShardOptions, "seed", [-1], "seed is"),
    (DreamShardOptions, "cost_rate", [0.0], "cost_rate is"),
    (DreamShardOptions, "policy_rate", [NAN], "policy_rate is"),
    (DreamShardOptions, "trace_decay", [2], "trace_decay is"),
    (DreamShardOptions, "collected", [1.5], "collected is"),
    (DreamShardOptions, "objective", ["both"], "objective is"),
    (RnnOptions, "updates", [0], "rnn: updates is"),
    (RnnOptions, "episodes", [1.5], "rnn: episodes is"),
    (RnnOptions, "hidden", [7, True], "rnn: hidden is"),
    (RnnOptions, "learning_rate", [0.0, NAN], "rnn: learning_rate is"),
    (RnnOptions, "entropy", [-1.0], "rnn: entropy is"),
    (RnnOptions, "decay", [1.0], "rnn: decay is"),
    (TrainingOptions, "head", ["cubic"], "head"),
    (TrainingOptions, "epochs", [0], "epochs"),
    (TrainingOptions, "batch", [0], "batch"),
    (NeuroShardOptions, "epochs", [0], "epochs"),
    (NeuroShardOptions, "batch", [0], "batch"),
    (with_defaults(SampleSpace, room_bytes=2**30), "pool", [()], "pool: is empty"),
    (with_defaults(SampleSpace, POOL), "room_bytes", [10], "at least 1 MiB"),
    (Breadth, "batch_sizes", [(), (0,)], "batch_sizes … each at least 1"),
    (Breadth, "sequence_share", [1.5], "between 0 and 1"),
    (with_defaults(Collection, 5), "space", ["huge"], "space is 'huge', must be one of usual, wide"),
    (collective, "pool", [()], "pool: is empty"),
    (collective, "world", [1], "world is 1, must be at least 2"),
    (collective, "seed", [-1], "seed is -1"),
    (collective, "batch_sizes", [(512, 3)], "batch_sizes is [512, 3], must not be empty, with each size at least 4"),
    (collective, "batch_sizes", [()], "batch_sizes"),
    (with_defaults(Collection, 5), "seed", [-1], "seed is -1, must not be negative"),
    (RunPolicy, "runs", [0, 2**15], "runs {} must be between 1 and"),
    (RunPolicy, "warm_up", [-1], "warm_up -1 must not be negative"),
    (TimingPolicy, "passes", [0], "passes 0, runs 10 must be at least"),
    (TimingPolicy, "runs", [0], "runs 0 must be at least"),
    (TimingPolicy, "warm_up", [-1], "warm_up -1"),
    (TimingPolicy, "statistic", ["mean"], "must be 'minimum' or 'median'"),
    (with_defaults(seconds_or_default, device="cpu"), "seconds", [0.0, -3.0, NAN], "--seconds is {}, must be greater than 0"),
    (with_defaults(measure_works, []), "rounds", [0], "rounds is 0, must be at least 1"),
    (with_defaults(measure_works, []), "device", ["tpu"], "device is 'tpu', must be 'cpu' or 'cuda'"),
    (with_defaults(measure_plans, [PLAN], device="cpu"), "backend", ["none"], "unknown backend 'none'"),
    (with_defaults(measure_plans, [PLAN]), "rounds", [0], "rounds is 0, must be at least 1"),
    (with_defaults(measure_plans, [PLAN]), "device", ["tpu"], "device is 'tpu'"),
    (random_task, "seed", [-1, 0.5, "one"], SEED),
    (with_defaults(paper_tasks, 1), "seed", [-1, 0.5, "one"], SEED),
    (with_defaults(split_pool, POOL, 0.5), "seed", [-1, 0.5, "one"], SEED),
    (with_defaults(split_pool, POOL), "share", [0.0, 1.0, -1.0, 0.01, NAN], "leaves a side empty"),
    (with_defaults(paper_tasks, 1), "paper", ["two_tiers"], "'two_tiers' has no task generator"),
    (drawn, "tables", [0], "tables is 0"),
    (drawn, "tables", [(5, 5)], "tables is (5, 5)"),
    (drawn, "tables", [(3, 10**30)], "must be from 1 to 100,000"),
    (drawn, "max_dim", [6, 0], "max_dim is {}"),
    (drawn, "dims", [()], "dims is empty"),
    (drawn, "dims", [(0,)], "dim is 0"),
    (drawn, "device", ["abacus"], "'abacus' has no preset; known devices are … h200"),
    (drawn, "pool", ["nowhere"], "unknown pool 'nowhere'"),
    (drawn, "pool", [()], "pool of 0 tables"),
    (with_defaults(drawn, replacement=False), "tables", [7], "pool of 6 tables cannot give 7 different ones"),
    (drawn, "scale", [NAN, 0], "scale {}"),
    (drawn, "memory", ["4 parsecs"], "unknown unit"),
    (with_defaults(random_task, 0, pool=LARGE, tables=3, dims=(4,), devices=1), "memory", ["1 MB"],
     "3 tables … exceeded 937.5 KB … raise memory or fill"),
    (table_pool, "name", ["dlrm-2020"], "'dlrm-2020' … dlrm-2021, dlrm-2022"),
    (public_model, "name", ["bert"], "'bert' … mlperf-dlrm-dcnv2, hugectr-180"),
    (with_defaults(public_task, topology=Topology()), "name", ["bert"], "'bert' … mlperf-dlrm-dcnv2, hugectr-180"),
    (with_defaults(public_model, "hugectr-7"), "scale", [0.0, -1.0, NAN], "scale"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "argument", "value", "named"),
    [
        pytest.param(
            make, argument, value, named.replace("{}", repr(value)), id=f"{argument}={value!r:.20}: {named:.30}"
        )
        for make, argument, values, named in CASES
        for value in values
    ],
)
def test_the_message_names_the_argument_and_the_value(
    make: Callable[..., object], argument: str, value: Any, named: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        make(**{argument: value})
    assert re.search("(?s)" + ".*".join(map(re.escape, named.split(" … "))), str(error.value))
    assert len(str(error.value)) < 500
