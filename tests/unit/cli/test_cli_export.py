import importlib.util
import json

import pytest

from shardwright.errors import InvalidPlan

TASK = """
batch_size: 1024
topology: {hosts: 1, devices_per_host: 4, device: cpu, memory: 1 GB}
tables:
  - {name: user, rows: 10_000, dim: 64}
  - {name: item, rows: 4_000, dim: 32, pooling: 20}
  - {name: shop, rows: 100, dim: 16}
constraints:
  - {table: user, sharding_types: [row_wise]}
  - {table: item, sharding_types: [column_wise]}
  - {table: shop, sharding_types: [data_parallel]}
"""


@pytest.fixture
def exported(cli, tmp_path):
    (tmp_path / "task.yaml").write_text(TASK)
    options = ("-o", tmp_path / "plan.json", "--export", "torchrec", "--time-limit", 0.1)
    outcome = cli("plan", tmp_path / "task.yaml", *options)
    assert outcome.code == 0, outcome.err
    assert "plan_torchrec.py: it has the lines" in outcome.out
    return tmp_path


def test_the_sharding_plan_lies_beside_the_plan(exported):
    tables = json.loads((exported / "plan.torchrec.json").read_text())["sharding_plan"][""]
    kinds = {name: table["sharding_type"] for name, table in tables.items()}
    assert kinds == {"user": "row_wise", "item": "column_wise", "shop": "data_parallel"}
    assert [shard["placement"] for shard in tables["user"]["shards"]] == [f"rank:{rank}/cpu" for rank in range(4)]


def test_the_lines_load_it_into_a_model(exported):
    pytest.importorskip("torchrec")
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    def model(**tables):
        from torch import nn

        configs = [
            EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[name])
            for name, (rows, dim) in tables.items()
        ]
        collections = [EmbeddingBagCollection(tables=configs[:1], device="meta")]
        collections.append(EmbeddingBagCollection(tables=configs[1:], device="meta"))
        return nn.ModuleDict({"users": collections[0], "rest": collections[1]})

    spec = importlib.util.spec_from_file_location("plan_torchrec", exported / "plan_torchrec.py")
    lines = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lines)
    shapes = {"user": (10_000, 64), "item": (4_000, 32), "shop": (100, 16)}
    plan = lines.load_sharding_plan(lines.PLAN, model(**shapes)).plan
    assert {path: list(module) for path, module in plan.items()} == {"rest": ["item", "shop"], "users": ["user"]}
    constraints = lines.CONSTRAINTS
    assert constraints["user"].sharding_types == ["row_wise"]
    assert constraints["item"].pooling_factors == [20.0]
    assert constraints["item"].min_partition == 32 // len(plan["rest"]["item"].ranks)
    with pytest.raises(InvalidPlan, match="has no table shop"):
        lines.load_sharding_plan(lines.PLAN, model(user=(10_000, 64), item=(4_000, 32)))
    with pytest.raises(InvalidPlan, match=r"table 'rest\.more' is not in this plan"):
        lines.load_sharding_plan(lines.PLAN, model(**shapes, more=(10, 16)))


def test_a_plan_that_there_is_can_be_exported(cli, exported):
    script = exported / "plan_torchrec.py"
    before = script.read_text()
    script.unlink()
    outcome = cli("plan", "--check", exported / "plan.json", "--export", "torchrec", "--json")
    assert outcome.document["saved"] == [str(exported / "plan.torchrec.json"), str(script)]
    assert script.read_text() == before
