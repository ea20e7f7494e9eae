"""Planning for TorchRec, cell by cell."""

# %% [markdown]
# # Planning for TorchRec
#
# A notebook as a script: cells begin with `# %%`. Run it whole (`python examples/torchrec_tutorial.py`) or cell by cell in an editor.
# It needs TorchRec (see "Installing" in the README), and no GPU.

# %%
import logging
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.types import PlannerError

import shardwright as sw
from shardwright.integrations.torchrec import ShardwrightPlanner, load_sharding_plan, save_sharding_plan

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

# %% [markdown]
# ## A model
#
# Forty tables of 1,000 to 381,000 rows. On the meta device they take no memory: a planner reads only shapes.

# %%
tables = [
    EmbeddingBagConfig(
        num_embeddings=1000 * (1 + index * index // 4),
        embedding_dim=32 * (1 + index % 4),
        name=f"t{index}",
        feature_names=[f"f{index}"],
    )
    for index in range(40)
]
model = torch.nn.Sequential(EmbeddingBagCollection(tables=tables, device=torch.device("meta")))
sharders = [EmbeddingBagCollectionSharder()]
topology = Topology(world_size=8, local_world_size=8, compute_device="cuda", hbm_cap=2 * 1024**3)

# %% [markdown]
# ## A plan
#
# `ShardwrightPlanner` takes the arguments of `EmbeddingShardingPlanner`. Without a process group, `plan` is enough; in training,
# every rank calls `collective_plan`.

# %%
pooling = {f"t{index}": ParameterConstraints(pooling_factors=[1.0 + index % 7 * 8]) for index in range(40)}
planner = ShardwrightPlanner(topology=topology, batch_size=512, constraints=pooling, stats=[])
planner.plan(model, sharders)  # the first search loads modules and the cost model
started = time.perf_counter()
plan = planner.plan(model, sharders)
seconds = time.perf_counter() - started
ours = planner.last_plan
print(
    f"ours: {seconds:.2f} s, predicted step {ours.cost.step_ms:.3f} ms, at most {ours.gap:.1%} from the best possible"
)

# %% [markdown]
# ## TorchRec's planner, priced by the same cost model

# %%
started = time.perf_counter()
theirs = EmbeddingShardingPlanner(topology=topology, batch_size=512, constraints=pooling, stats=[]).plan(
    model, sharders
)
seconds = time.perf_counter() - started

from shardwright.cost.score import score  # noqa: E402
from shardwright.integrations.torchrec import plan_of  # noqa: E402
from shardwright.integrations.torchrec.topology import default_cost_model  # noqa: E402

shards = plan_of(theirs, planner.last_problem).shards
cost = score(planner.last_problem.task, shards, default_cost_model(topology, planner.last_problem.task))
print(f"TorchRec's: {seconds:.2f} s, predicted step {cost.step_ms:.3f} ms")

# %% [markdown]
# ## Where tables lie

# %%
for name in ("t0", "t20", "t39"):
    part = plan.plan["0"][name]
    print(f"{name}: {part.sharding_type} by kernel {part.compute_kernel} on ranks {part.ranks}")

# %% [markdown]
# ## Constraints
#
# `ParameterConstraints` mean the same as for TorchRec's planner. If one cannot be kept, the error has TorchRec's error type.

# %%
demands = pooling | {"t39": replace(pooling["t39"], sharding_types=["row_wise"])}
demanding = ShardwrightPlanner(topology=topology, batch_size=512, constraints=demands, stats=[])
print("t39 is now", demanding.plan(model, sharders).plan["0"]["t39"].sharding_type)
small = Topology(world_size=8, compute_device="cuda", hbm_cap=20 * 1024**2)
try:
    ShardwrightPlanner(topology=small, batch_size=512, stats=[]).plan(model, sharders)
except PlannerError as error:
    print(f"{error.error_type.value}: {str(error)[:120]} …")

# %% [markdown]
# ## Files
#
# Save a sharding plan as JSON and load it: TorchRec itself cannot load one.

# %%
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "sharding_plan.json"
save_sharding_plan(plan, path)
print("loaded, the plan is the same:", str(load_sharding_plan(path)) == str(plan))

# %% [markdown]
# ## Does it run?
#
# `run_here` (on the command line `shardwright verify plan.json --steps`) starts a process for each device, here two on the CPU, trains some
# steps with `DistributedModelParallel`, and shows times and memory beside the prediction.

# %%
from shardwright.integrations.torchrec.steps.rank import Rounds  # noqa: E402
from shardwright.integrations.torchrec.steps.run import run_here  # noqa: E402

bags = [
    sw.Table(f"t{i}", rows=5000 * (i + 1), dim=32, pooling=4.0, access=sw.AccessProfile.zipf(5000 * (i + 1), 1.05))
    for i in range(8)
]
task = sw.Task(bags, sw.Topology(devices_per_host=2, device="cpu"), batch_size=512)
(run,) = run_here([sw.plan(task, runs_on="torchrec")], Rounds(rounds=1, steps=3))
for rank, report in enumerate(run.reports[0]):
    held, account = report.weights_bytes + report.optimizer_bytes, run.plan.memory
    expected = account.weights[rank] + account.optimizer[rank]
    print(f"rank {rank}: {held / 1e6:.2f} MB allocated, {expected / 1e6:.2f} MB in the account")
    assert abs(held / expected - 1) < 0.1
print(
    f"a step of TorchRec took {run.step_ms:.1f} ms on this machine, {run.plan.cost.step_ms:.1f} ms predicted for its kernels and links"
)
folder.cleanup()
