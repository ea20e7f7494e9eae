"""Ids of a log column as 64-bit keys that look random: integers are scrambled one to one, text is hashed.

The keys do not depend on the file, the platform or the library versions, so that partial profiles can be merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.errors import InvalidInput
from shardwright.workload.profile.sketch import Keys

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TEXT_BYTES = 4096

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIXERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_LOW_BYTES = np.array([(1 << (8 * count)) - 1 for count in range(9)], dtype=np.uint64)


def integer_keys(ids: pa.Array, where: str) -> tuple[Keys, int, int]:
    """Keys of integer ids, different for different ids.

    Args:
        ids: `(n,)` integers of any width, n at least 1, no nulls.
        where: file and column, for messages.

    Returns:
        `(n,)` keys, and the smallest and the largest id.

    Raises:
        InvalidInput: an id is negative.
    """
    numbers = ids.to_numpy(zero_copy_only=False)
    lowest = int(numbers.min())
    if lowest < 0:
        raise InvalidInput(
            f"{where}: id {lowest} is negative; ids must be at least 0 "
            "(write missing ids as null, or exclude the column if it holds no ids)"
        )
    return scramble(numbers.astype(np.uint64)), lowest, int(numbers.max())


def text_keys(ids: pa.Array, where: str) -> Keys:
    """Keys of text (or binary) ids: a 64-bit hash of their bytes, eight at a time.

    Args:
        ids: `(n,)` strings or binaries, no nulls.
        where: file and column, for messages.

    Returns:
        `(n,)` keys.

    Raises:
        InvalidInput: an id is longer than 4,096 bytes.
    """
    words, position, rest = _byte_windows(ids)
    longest = int(rest.max(initial=0))
    if longest > MAX_TEXT_BYTES:
        raise InvalidInput(
            f"{where}: an id has {longest:,} bytes; ids of text may have at most {MAX_TEXT_BYTES:,}: is it a text feature? exclude it"
        )
    keys = scramble(rest.astype(np.uint64))
    unfinished = np.flatnonzero(rest)
    while unfinished.size:
        left = rest[unfinished]
        word = words[position[unfinished]] & _LOW_BYTES[np.minimum(left, 8)]
        keys[unfinished] = scramble(keys[unfinished] ^ word)
        position[unfinished] += 8
        rest[unfinished] -= np.minimum(left, 8)
        unfinished = unfinished[left > 8]
    return keys


def scramble(numbers: Keys) -> Keys:
    """One-to-one map of 64-bit numbers to ones that look random: number i is the i-th of SplitMix64 (Steele et al., 2014)."""
    mixed = numbers * _GOLDEN
    mixed += _GOLDEN
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MIXERS[0]
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIXERS[1]
    mixed ^= mixed >> np.uint64(31)
    return mixed


def unscramble(keys: Keys) -> Keys:
    """The numbers of which `scramble` makes these keys."""
    numbers = _unshifted(keys, 31) * _inverse(_MIXERS[1])
    numbers = _unshifted(numbers, 27) * _inverse(_MIXERS[0])
    ids: Keys = (_unshifted(numbers, 30) - _GOLDEN) * _inverse(_GOLDEN)
    return ids


def _unshifted(mixed: Keys, shift: int) -> Keys:
    """The `(n,)` numbers x of which `mixed` is x ^ (x >> shift), for shifts of 22 and more."""
    numbers: Keys = mixed ^ (mixed >> np.uint64(shift)) ^ (mixed >> np.uint64(2 * shift))
    return numbers


def _inverse(odd: np.uint64) -> np.uint64:
    """The number whose product with an odd one is 1 modulo 2 ** 64."""
    return np.uint64(pow(int(odd), -1, 1 << 64))


def _byte_windows(ids: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The eight bytes from every position of the ids' text as a little-endian number, and `(n,)` starts and lengths of the ids."""
    import pyarrow as pa

    if pa.types.is_string_view(ids.type):
        ids = ids.cast(pa.large_string())
    ids = ids.cast(pa.large_binary())
    _, offsets, data = ids.buffers()
    ends = np.frombuffer(offsets, dtype="<i8")[ids.offset : ids.offset + len(ids) + 1].astype(np.int64)
    start, stop = int(ends[0]), int(ends[-1])
    padded = np.zeros(stop - start + 8, dtype=np.uint8)
    if data is not None:
        padded[: stop - start] = np.frombuffer(data, dtype=np.uint8)[start:stop]
    windows: npt.NDArray[Any] = np.ndarray((stop - start + 1,), dtype="<u8", buffer=padded, strides=(1,))
    return windows, ends[:-1] - start, np.diff(ends)
