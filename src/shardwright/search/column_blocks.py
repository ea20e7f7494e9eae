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
