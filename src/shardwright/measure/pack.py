"""Several sample stores of one machine as one small store, to be kept: `python -m shardwright.measure.pack STORE... -o FOLDER`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.files import write_atomically
from shardwright.measure.checks import CHECKS
from shardwright.measure.identity import IDENTITY, check_hardware, read_identity
from shardwright.measure.parts import FORMAT, write_part
from shardwright.measure.store import read_samples

# A third smaller than parts are as a rule: bytes of like significance lie together, and compression may take its time.
_ENCODING: dict[str, Any] = {
    "compression_level": 19,
    "use_dictionary": False,
    "use_byte_stream_split": [
        f"shards.list.element.{name}" for name in ("lookups", "reuse_rows.list.element", "reuse_lookups.list.element")
    ],
}


def pack(stores: Sequence[Path], output: Path, *, optimizer: str | None = None) -> int:
    """Write the samples of several stores, of other seeds for example, as one part of a new store.

    Visits to a sample become one row; samples are numbered anew so that no two stores share a number. The checks of the machine
    (`shardwright.measure.checks`) come along.

    Args:
        stores: their folders; all measured on the same hardware.
        output: folder of the new store; must not hold one.
        optimizer: take the samples of this one only: a cost model is of one optimizer.

    Returns:
        How many measurements it holds.

    Raises:
        InvalidInput: a folder is no store, the hardware differs, the output holds a store, or no sample is of the optimizer.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if (output / IDENTITY).exists():
        raise InvalidInput(f"{output}: holds a sample store already; name another folder, or remove it first")
    identities = [read_identity(store) for store in stores]
    tables, shift = [], 0
    for store, identity in zip(stores, identities, strict=True):
        check_hardware(store / IDENTITY, identity["hardware"], identities[0]["hardware"])
        samples = read_samples(store)
        place = samples.schema.get_field_index("sample")
        tables.append(samples.set_column(place, "sample", pc.add(samples["sample"], shift)))
        shift += pc.max(samples["sample"]).as_py() + 1
    packed = {
        "format": FORMAT,
        "hardware": identities[0]["hardware"],
        "request": {"packed": [identity["request"] for identity in identities]},
    }
    table = pa.concat_tables(tables).combine_chunks()
    if optimizer is not None:
        table = table.filter(pc.equal(table["optimizer"], optimizer))
    if not table.num_rows:
        raise InvalidInput(f"no sample was measured with optimizer {optimizer!r}; name one that the stores hold")
    output.mkdir(parents=True, exist_ok=True)
    write_part(output / "part-00000.parquet", table, packed, **_ENCODING)
    write_atomically(output / IDENTITY, json.dumps(packed, indent=2) + "\n")
    checks = next((store / CHECKS for store in stores if (store / CHECKS).exists()), None)
    if checks is not None:
        shutil.copyfile(checks, output / CHECKS)
    return int(table.num_rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m shardwright.measure.pack", description="Make one small sample store of several."
    )
    parser.add_argument("stores", type=Path, nargs="+", metavar="STORE", help="sample stores of one machine")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the new store")
    parser.add_argument("--optimizer", help="only the samples of this optimizer")
    options = parser.parse_args(arguments)
    try:
        rows = pack(options.stores, options.output, optimizer=options.optimizer)
    except ShardwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    size = sum(path.stat().st_size for path in options.output.iterdir())
    print(f"{rows} measurements in {options.output}: {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
