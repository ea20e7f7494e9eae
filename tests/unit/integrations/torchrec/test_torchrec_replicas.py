"""Replicas are trained by the model's dense optimizer: when they are planned, and the messages about them and about optimizers."""

import logging
import warnings

import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.quant_embeddingbag import QuantEmbeddingBagCollectionSharder

from .made import SHARDERS, bags, planner, refused, sequences, tables_of, topology, with_optimizer
from .test_torchrec_kernels import quantised

pytestmark = pytest.mark.torchrec

REPLICAS = {"t0": ParameterConstraints(sharding_types=["data_parallel"])}


def small():
    """Two tables that every rank had better hold: few rows, many lookups, slow links."""
    return bags([(40, 64), (30, 64)])


def kinds(sharders, module=None, where=None, **fields):
    """Sharding type by table, if replicas pay."""
    where = where or topology(4, 1, hbm=1 << 30, intra_host_bw=1e4, inter_host_bw=1e4)
    fields = {"batch_size": 4096} | fields
    plan = planner(where, **fields).plan(module or small(), sharders)
    return {name: table.sharding_type for (_, name), table in tables_of(plan).items()}


def test_tables_that_name_an_optimizer_have_replicas_only_if_asked_for(caplog):
    assert kinds(SHARDERS) == {"t0": "data_parallel", "t1": "data_parallel"}
    assert "data_parallel" not in kinds(with_optimizer()).values()
    assert kinds(with_optimizer(), constraints=REPLICAS)["t0"] == "data_parallel"
    dense = {name: ParameterConstraints(compute_kernels=["dense"]) for name in ("t0", "t1")}
    assert set(kinds(with_optimizer(), constraints=dense).values()) == {"data_parallel"}


def test_a_line_names_the_replicated_tables(caplog):
    caplog.set_level(logging.INFO, "shardwright")
    kinds(SHARDERS)
    (line,) = [record for record in caplog.records if "dense optimizer" in record.message]
    assert line.levelno == logging.INFO
    assert ".t0, .t1" in line.message
    caplog.clear()
    kinds(with_optimizer(), constraints=REPLICAS)
    (line,) = [record for record in caplog.records if "dense optimizer" in record.message]
    assert line.levelno == logging.WARNING
    assert "not by exact_adagrad: .t0" in line.message
    caplog.clear()
    kinds(with_optimizer())
    assert not [record for record in caplog.records if "dense optimizer" in record.message]


def test_an_unknown_optimizer_warns_once():
    with pytest.warns(
        UserWarning, match="no table names an embedding optimizer.*apply_optimizer_in_backward"
    ) as caught:
        planner().plan(bags([(4000, 64)]), SHARDERS)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        planner().plan(bags([(4000, 64)]), with_optimizer())
        planner(topology(2, device="cpu")).plan(quantised(False), [QuantEmbeddingBagCollectionSharder()])


def test_variable_batches_have_no_replicas_on_cpus():
    """FBGEMM's dense kernel for CPUs takes one batch size only."""
    cpu = topology(4, 1, device="cpu", intra_host_bw=1e4, inter_host_bw=1e4, ddr_cap=1 << 30)
    own = {"t1": ParameterConstraints(batch_sizes=[512])}
    assert "data_parallel" in kinds(SHARDERS, where=cpu).values()
    assert (
        "data_parallel"
        in kinds(SHARDERS, where=cpu, constraints={"t1": ParameterConstraints(batch_sizes=[4096])}).values()
    )
    assert "data_parallel" not in kinds(SHARDERS, where=cpu, constraints=own).values()
    assert "data_parallel" in kinds(SHARDERS, constraints=own).values()
    with refused("STRICT_CONSTRAINTS", "one batch size only"):
        kinds(SHARDERS, where=cpu, constraints=own | REPLICAS)
    assert "data_parallel" not in kinds(SHARDERS, sequences((40, 30), 64), cpu).values()
