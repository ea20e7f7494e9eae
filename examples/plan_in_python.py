"""Plan a random model in Python and read the answer: python examples/plan_in_python.py."""

import numpy as np

import shardwright as sw


def main() -> None:
    rng = np.random.default_rng(0)
    tables = []
    for index in range(60):
        rows = int(10 ** rng.uniform(3, 7))
        tables.append(
            sw.Table(
                name=f"feature_{index}",
                rows=rows,
                dim=int(rng.choice([16, 32, 64, 128])),
                pooling=float(10 ** rng.uniform(0, 1.7)),
                access=sw.AccessProfile.zipf(rows, exponent=1.05),
            )
        )
    task = sw.Task(tables, sw.Topology.preset("h100-8"), batch_size=65_536)

    for strategy in sw.strategy_names(task):
        plan = sw.plan(task, strategy=strategy)
        assert plan.cost is not None
        print(
            f"{strategy:12} step {plan.cost.step_ms:6.3f} ms  memory {plan.memory.total.max() / 1e9:5.1f} GB on the fullest device"
        )

    best = sw.plan(task)
    print("feature_0 lies on", [(shard.columns, shard.devices) for shard in best.by_table["feature_0"]])


if __name__ == "__main__":
    main()
