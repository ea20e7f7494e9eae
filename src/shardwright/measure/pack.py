"""Several sample stores of one machine as one small store, to be kept: `python -m shardwright.measure.pack STORE... -o FOLDER`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwright.errors import InvalidInput, ShardwrightError, printable
from shardwright.files import write_atomically
from shardwright.measure.checks import CHECKS
from shardwright.measure.failures import FAILURES, read_failures
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


def pack(stores: Sequence[Path], output: Path, *, optimizer: str | None = None, replace: bool = False) -> int:
    """Write the samples of several stores, of other seeds for example, as one part of a new store.

    Visits to a sample become one row; samples are numbered anew so that no two stores share a number. The checks of the machine
    (`shardwright.measure.checks`) and what failed (`shardwright.measure.failures`) come along. A store may be packed while it is collected.

    Args:
        stores: their folders; all measured on the same hardware, each with a seed of its own.
        output: folder of the new store; must not hold one.
        optimizer: take the samples of this one only: a cost model is of one optimizer.
        replace: write over what was packed into `output` before, file by file, each in one step: a kill leaves the old file or the new.

    Returns:
        How many measurements it holds.

    Raises:
        InvalidInput: a folder is no store, two stores share a seed, the hardware differs, the output holds a store, or no sample is of
            the optimizer.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    _check_output(output, replace=replace)
    identities = [read_identity(store) for store in stores]
    _check_seeds(stores, [identity["request"] for identity in identities])
    tables, failed, shift = [], [], 0
    for store, identity in zip(stores, identities, strict=True):
        check_hardware(store / IDENTITY, identity["hardware"], identities[0]["hardware"])
        samples, failures = read_samples(store), read_failures(store)
        place = samples.schema.get_field_index("sample")
        tables.append(samples.set_column(place, "sample", pc.add(samples["sample"], shift)))
        failed += [{"sample": key[0] + shift, "repeat": key[1], "error": error} for key, error in failures.items()]
        shift += max([pc.max(samples["sample"]).as_py(), *(sample for sample, _ in failures)]) + 1
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
    _bring_along(stores, failed, output)
    write_atomically(output / IDENTITY, json.dumps(packed, indent=2) + "\n")
    return int(table.num_rows)


def _check_output(output: Path, *, replace: bool) -> None:
    """Check that nothing but what was packed before is written over, and that only on demand."""
    if not (output / IDENTITY).exists():
        return
    if not replace:
        raise InvalidInput(f"{output}: holds a sample store already; name another folder, or remove it first")
    if "packed" not in read_identity(output)["request"]:
        raise InvalidInput(
            f"{output}: holds a store that was collected, not packed, and would be lost; name another folder"
        )


def _check_seeds(stores: Sequence[Path], requests: Sequence[Mapping[str, Any]]) -> None:
    """Check that no two stores share a seed: the same sets of tables would be in training, validation and test under several numbers.

    The seed alone decides, since another batch size, optimizer or memory leaves most of the tables the same.
    """
    known: dict[str, Path] = {}
    for store, request in zip(stores, requests, strict=True):
        for collected in _collected(request):
            seed = json.dumps(collected.get("seed", collected), sort_keys=True)
            if seed in known:
                raise InvalidInput(
                    f"{store}: collected with seed {seed}, as is {known[seed]}; stores that are packed together must not share a seed, "
                    "since sets that are trained on would be tested on; leave the smaller one out, and collect with another --seed"
                )
            known[seed] = store


def _collected(request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The requests of the collections that a store, which may be packed itself, is made of."""
    if "packed" not in request:
        yield request
    for part in request.get("packed", ()):
        yield from _collected(part)


def _bring_along(stores: Sequence[Path], failed: Sequence[Mapping[str, Any]], output: Path) -> None:
    """Write the checks of the machine, and the failures of all stores."""
    checks = next((store / CHECKS for store in stores if (store / CHECKS).exists()), None)
    for name, content in (
        (CHECKS, checks and checks.read_bytes()),
        (FAILURES, b"".join(json.dumps(failure).encode() + b"\n" for failure in failed)),
    ):
        if content:
            write_atomically(output / name, content)
        else:  # of what was packed there before
            (output / name).unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m shardwright.measure.pack", description="Make one small sample store of several."
    )
    parser.add_argument("stores", type=Path, nargs="+", metavar="STORE", help="sample stores of one machine")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the new store")
    parser.add_argument("--optimizer", help="only the samples of this optimizer")
    parser.add_argument("--replace", action="store_true", help="write over what was packed into this folder before")
    options = parser.parse_args(arguments)
    try:
        rows = pack(options.stores, options.output, optimizer=options.optimizer, replace=options.replace)
    except ShardwrightError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    size = sum(path.stat().st_size for path in options.output.iterdir())
    print(f"{rows} measurements in {printable(str(options.output))}: {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
