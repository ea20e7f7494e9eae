"""Values that the objects of a task refuse: the message names the object, the field and the value."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shardwright.errors import InvalidInput
from shardwright.task import AccessProfile, Constraints, Table, TableConstraint, Task, Topology

TABLES = (Table("a", 10, 4), Table("b", 20, 8))


def table(**fields: Any) -> Table:
    given: dict[str, Any] = {"name": "t", "rows": 1000, "dim": 8}
    return Table(**(given | fields))


def topology(**fields: Any) -> Topology:
    given: dict[str, Any] = {"hosts": 2, "devices_per_host": 2}
    return Topology(**(given | fields))


def task(**fields: Any) -> Task:
    given: dict[str, Any] = {"tables": TABLES, "topology": Topology(), "batch_size": 64}
    return Task(**(given | fields))


# How it is made, the field with the bad value, and the names in the message.
CASES: list[tuple[Callable[..., object], dict[str, Any], str]] = [
    (table, {"rows": 0}, "table 't': rows is 0"),
    (table, {"rows": -3}, "rows is -3"),
    (table, {"rows": 2.0}, "rows is 2.0"),
    (table, {"rows": True}, "rows is True"),
    (table, {"rows": "7"}, "rows is '7'"),
    (table, {"rows": np.True_}, "rows is np.True_"),
    (table, {"rows": np.float64(1000)}, "rows is np.float64(1000.0)"),
    (table, {"rows": 10**400}, "more than 2**50 elements"),
    (table, {"rows": 2**47, "dim": 16}, "more than 2**50 elements"),
    (table, {"dim": 0}, "dim is 0"),
    (table, {"dim": None}, "dim is None"),
    (table, {"pooling": 0}, "pooling is 0"),
    (table, {"pooling": -1.0}, "pooling is -1.0"),
    (table, {"pooling": math.nan}, "pooling is nan"),
    (table, {"pooling": math.inf}, "pooling is inf"),
    (table, {"pooling": "1"}, "pooling is '1'"),
    (table, {"pooling": True}, "pooling is True"),
    (table, {"pooling": []}, "pooling has 0 numbers"),
    (table, {"pooling": [1.0] * 70_000}, "pooling has 70000 numbers"),
    (table, {"pooling": [3, 0]}, "pooling[1] is 0"),
    (table, {"pooling": [[3]]}, "pooling[0] is [3]"),
    (table, {"pooling": 10**400}, "pooling is 1000"),
    (table, {"pooled": "false"}, "pooled is 'false'"),
    (table, {"pooled": 0}, "pooled is 0"),
    (table, {"access": "uniform"}, "access is 'uniform'"),
    (table, {"access": None}, "access is None"),
    (table, {"access": AccessProfile.uniform(9)}, "covers 9 rows, the table has 1000"),
    (table, {"id_shares": 0.5}, "id_shares is 0.5"),
    (table, {"id_shares": [0.5, "x"]}, "id_shares[1] is 'x'"),
    (table, {"id_shares": [0.5, 0.4]}, "id_shares add up to 0.9"),
    (table, {"dtype": "fp8"}, "dtype is 'fp8'"),
    (table, {"name": ""}, "name ''"),
    (table, {"name": "a\nb"}, r"name 'a\nb'"),
    (table, {"name": "\ud800"}, "must be printable text"),
    (table, {"name": 5}, "name 5"),
    (topology, {"hosts": 0}, "topology: hosts is 0"),
    (topology, {"hosts": 1.5}, "hosts is 1.5"),
    (topology, {"hosts": True}, "hosts is True"),
    (topology, {"hosts": np.True_}, "hosts is np.True_"),
    (topology, {"hosts": 10**12}, "hosts 1000000000000 × devices_per_host 2"),
    (topology, {"devices_per_host": -2}, "devices_per_host is -2"),
    (topology, {"device": ""}, "device is ''"),
    (topology, {"device": 5}, "device is 5"),
    (topology, {"memory": "80 gigs"}, "memory: unknown unit 'gigs'"),
    (topology, {"memory": 0}, "memory: 0 must be at least 1 byte"),
    (topology, {"memory": -1}, "memory: -1"),
    (topology, {"memory": math.nan}, "must be finite"),
    (topology, {"memory": None}, "memory: None is not a quantity"),
    (topology, {"memory": {10**9}}, "is not a quantity"),  # sizes in no order are of no ranks
    (topology, {"memory": np.True_}, "is not a quantity"),
    (topology, {"memory": ["1 GB"]}, "memory lists 1 sizes for 4 devices"),
    (topology, {"memory": ["1 GB", 1, 1, "x"]}, "memory[3]: 'x'"),
    (topology, {"intra_bandwidth": "1 GB"}, "intra_bandwidth: '1 GB'"),
    (topology, {"inter_bandwidth": 0}, "inter_bandwidth: 0"),
    (topology, {"intra_latency_ms": True}, "intra_latency_ms is True"),
    (topology, {"intra_latency_ms": -0.1}, "intra_latency_ms is -0.1"),
    (topology, {"inter_latency_ms": math.inf}, "inter_latency_ms is inf"),
    (topology, {"inter_latency_ms": math.nan}, "inter_latency_ms is nan"),
    (topology, {"inter_latency_ms": "1"}, "inter_latency_ms is '1'"),
    (task, {"tables": ()}, "tables: a task needs at least one table"),
    (task, {"tables": (*TABLES, Table("a", 5, 5))}, "'a' occurs twice"),
    (task, {"tables": (Table("a", 10, 4, 1e300),)}, "pooling 1e+300 × dim 4"),
    (task, {"batch_size": 0}, "batch_size is 0"),
    (task, {"batch_size": -4}, "batch_size is -4"),
    (task, {"batch_size": 4.0}, "batch_size is 4.0"),
    (task, {"batch_size": True}, "batch_size is True"),
    (task, {"batch_size": np.float64(4)}, "batch_size is np.float64(4.0)"),
    (task, {"batch_size": 10**400}, "batch_size is 1000"),
    (task, {"optimizer": "lamb"}, "optimizer is 'lamb'"),
    (task, {"constraints": Constraints({"x": TableConstraint()})}, "table 'x' is not in the task"),
    (task, {"constraints": Constraints({"a": TableConstraint(devices=(9,))})}, "rank 9"),
    (TableConstraint, {"sharding_types": ("by_row",)}, "unknown sharding type 'by_row'"),
    (TableConstraint, {"sharding_types": ()}, "sharding_types is empty"),
    (TableConstraint, {"sharding_types": "row_wise"}, "sharding_types is 'row_wise'"),
    (TableConstraint, {"sharding_types": (1,)}, "sharding_types is (1,)"),
    (TableConstraint, {"devices": ()}, "devices is []"),
    (TableConstraint, {"devices": (0, -1)}, "devices is [0, -1]"),
    (TableConstraint, {"devices": (0.5,)}, "constraints: devices is (0.5,)"),
    (TableConstraint, {"devices": (True,)}, "devices is (True,)"),
    (TableConstraint, {"devices": "01"}, "devices is '01'"),
    (TableConstraint, {"devices": 1}, "devices is 1"),
    (TableConstraint, {"max_shards": 0}, "constraints: max_shards is 0"),
    (TableConstraint, {"max_shards": 1.5}, "max_shards is 1.5"),
    (TableConstraint, {"max_shards": True}, "max_shards is True"),
    (TableConstraint, {"min_columns": "4"}, "min_columns is '4'"),
    (TableConstraint, {"max_columns": 64}, "max_columns is 64 without equal_columns"),
    (TableConstraint, {"column_multiple": np.float64(4)}, "column_multiple is np.float64(4.0)"),
    (TableConstraint, {"equal_rows": "no"}, "equal_rows is 'no'"),
    (TableConstraint, {"max_shards": 1, "sharding_types": ("row_wise", "grid")}, "max_shards is 1"),
]


@pytest.mark.parametrize(("make", "fields", "named"), CASES)
def test_the_message_names_the_field_and_the_value(
    make: Callable[..., object], fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        make(**fields)
    assert named in str(error.value)
    assert len(str(error.value)) < 300
