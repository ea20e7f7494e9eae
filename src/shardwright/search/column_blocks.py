"""What column blocks are made of."""

from __future__ import annotations

import math

from shardwright.task.constraints import TableConstraint
from shardwright.task.table import Table

UNIT = 4  # columns; narrower blocks waste vector units and are not aligned to 16 bytes


def unit_width(table: Table, limits: TableConstraint) -> int:
    """Columns that the widths of blocks are multiples of; the whole dim where it cannot be cut into columns.

    They are 4, or 1 where the dim is no multiple of 4, and a multiple of the constraint's `column_multiple`. Fused kernels take no block
    narrower than 4 columns, so a table of 4 is cut only if its constraints forbid to leave it whole.
    """
    narrow = table.dim == UNIT and not limits.allows("table_wise")
    width = math.lcm(1 if table.dim % UNIT or narrow else UNIT, limits.column_multiple or 1)
    return width if table.dim % width == 0 else table.dim


def equal_blocks(table: Table, limits: TableConstraint) -> list[int]:
    """Numbers of blocks that a table may be cut into by columns, ascending, where `equal_columns` wants blocks of one width.

    They divide the units of the dim, and leave blocks of at least `min_columns`, at most `max_shards` of them; none where the table may not
    be cut by columns.
    """
    if not limits.allows("column_wise"):
        return []
    units = table.dim // unit_width(table, limits)
    most = min(units, table.dim // max(limits.min_columns or 1, 1), limits.max_shards or units)
    return [count for count in range(2, most + 1) if units % count == 0]
