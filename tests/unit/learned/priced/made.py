"""Tasks, cost models and policies that the tests of priced policies share."""

import numpy as np
import torch

import shardwright as sw
from shardwright.cost.files import bundled_models, load_model
from shardwright.cost.published import PublishedModel
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.policy_files import INPUTS, PRICES, SavedPolicy
from shardwright.learned.priced.task import PricedTask
from shardwright.learned.priced.training import PricedNetwork
from shardwright.task import Constraints, TableConstraint


def mixed_task(count=20, devices=4, hosts=1, **constraints):
    """Narrow and wide tables, some of sequences, with links."""
    rng = np.random.default_rng(count)
    tables = [
        sw.Table(
            f"t{i}", int(rows), int(rng.choice([16, 64, 128])), pooling=float(rng.integers(1, 40)), pooled=i % 5 > 0
        )
        for i, rows in enumerate(rng.integers(100, 100_000, count))
    ]
    whole = {table.name: TableConstraint(sharding_types=("table_wise",)) for table in tables}
    topology = sw.Topology(hosts=hosts, devices_per_host=devices // hosts, device="h200", memory="40 GB")
    return sw.Task(
        tables, topology, 4096, constraints=Constraints(whole | constraints.pop("tables", {}), **constraints)
    )


def models():
    """A linear model, one with hidden units, and one with gates."""
    return {
        "h200": PublishedModel("h200"),
        **{name: load_model(path) for name, path in bundled_models().items() if name in ("cpu", "h100")},
    }


def priced(task, model):
    return PricedTask.of(PlacementArrays.of(task, features=False), model)


def random_network(seed=0):
    """Networks with random weights in the last layer too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = PricedNetwork()
        torch.nn.init.normal_(network.layers[-1].weight)
    return network


def policy_of(network, strategy="dreamshard"):
    weights = {name: value.detach().numpy() for name, value in network.state_dict().items()}
    return SavedPolicy(strategy, weights, {INPUTS: PRICES})
