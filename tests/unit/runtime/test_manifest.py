import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import msgspec

from shardwright.documents.json_text import parse_json
from shardwright.errors import InvalidInput
from shardwright.files import MAX_BYTES, MAX_VALUES
from shardwright.runtime.manifest import FORMAT, Entry, Manifest, Part, SavedTable, check_readable, measure

TEXT = msgspec.json.encode(
    Manifest(
        FORMAT,
        "sgd",
        3,
        [SavedTable("a, [b] {ü}", 10, 4, "fp32")],
        [Part("rank-0-part-0-0123456789abcdef.safetensors", 9, 8, [Entry("a, [b] {ü}", 10, 0, 9)])],
    )
)


def test_values_are_counted_as_the_reader_does():
    size, values = measure(TEXT)
    assert size == len(TEXT)
    parse_json(TEXT.decode(), "m", values)
    with pytest.raises(InvalidInput, match=f"more than {values - 1} values"):
        parse_json(TEXT.decode(), "m", values - 1)


@pytest.mark.parametrize("more", [(1, 0), (0, 1)])
def test_a_manifest_that_could_not_be_read_is_refused(more):
    check_readable(MAX_BYTES, MAX_VALUES)
    with pytest.raises(InvalidInput, match="spread the tables over several modules"):
        check_readable(MAX_BYTES + more[0], MAX_VALUES + more[1])
