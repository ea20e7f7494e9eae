"""With the default exchange, the bytes of any plan are those of the plain account, block by block."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.cost.communication import traffic
from shardwright.task import Exchange
from tests.oracles.communication import traffic as plain
from tests.strategies import plans, tasks


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_the_default_exchange_changes_no_byte(data):
    task = data.draw(tasks(max_tables=3))
    shards = data.draw(plans(task))
    new, old = traffic(task, shards), plain(task, shards)
    for phase in ("forward", "backward"):
        for way in ("sent", "received"):
            found, expected = (getattr(getattr(flows, phase), way) for flows in (new, old))
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * expected.max(initial=1.0))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_exchange_does_not_concern_pooled_tables(data):
    task = data.draw(tasks(max_tables=3))
    task = replace(task, tables=[replace(table, pooled=True) for table in task.tables])
    shards = data.draw(plans(task))
    other = replace(task, exchange=Exchange(data.draw(st.sampled_from(["device", "host"])), "touched"))
    for phase in ("forward", "backward"):
        found, expected = (getattr(traffic(one, shards), phase).sent for one in (other, task))
        np.testing.assert_array_equal(found, expected)
