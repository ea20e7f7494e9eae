"""Reading and writing files: atomic writes, bounded reads, YAML and JSON documents that cannot do harm."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from shardwright.documents.json_text import dump_json, parse_json
from shardwright.errors import InvalidInput, ShardwrightError

MAX_BYTES = 64 * 2**20
"""Most bytes of a document; a task of 10,000 tables with access profiles takes about 40 MB."""

MAX_VALUES = 5_000_000
"""Most values in a document. The limit keeps the memory of an expanded small file below about 0.5 GB."""


_KINDS = {".json": ".json", ".yaml": ".yaml", ".yml": ".yaml"}
_LIKE_JSON = re.compile(r'\s*\{\s*["}]')
_STDOUT = 1
_DESCRIPTORS = {"/dev/stdout": _STDOUT, "/dev/stderr": 2}
_BAD_PATH = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.EBADF, errno.ENXIO),
}
"""Errors that mean a wrong path rather than a failed write."""


def write_atomically(path: str | Path, data: bytes | str) -> None:
    """Write a file so that readers see the old content or the new, never a part, even if the process dies.

    The data goes to a temporary file in the same folder, is forced to the disk, and replaces `path` in one step. A path that is not
    a regular file (a pipe, `/dev/stdout`, the `/dev/fd/63` of a shell's `>(…)`) is written directly.

    Raises:
        InvalidInput: the path cannot be written to.
        ShardwrightError: writing failed half-way, as on a full disk; the old content is untouched.
    """
    content = data.encode("utf-8") if isinstance(data, str) else data
    try:
        if is_stream(path):
            with _open_stream(path) as stream:
                stream.write(content)
        else:
            status(path)  # raises for a link that leads to itself, which must not be replaced
            _replace(Path(path).resolve(), content)  # follows links, so that a link stays a link
    except OSError as error:
        if error.errno in _BAD_PATH:
            raise InvalidInput(
                f"{path}: cannot be written ({error.strerror}); name a file in a folder you may write to"
            ) from error
        kept = "whoever reads it has a part" if is_stream(path) else "what was there before is untouched"
        raise ShardwrightError(f"{path}: writing failed ({error.strerror}); {kept}") from error


def is_stream(path: str | Path) -> bool:
    """Whether a path is a pipe, a device or an open descriptor. Such a path is written directly and has no files beside it.

    Raises:
        OSError: no file can have this path, as in `status`.
    """
    info = status(path)
    kind = stat.S_IFMT(info.st_mode) if info else None
    return _descriptor(path) is not None or kind not in (None, stat.S_IFREG, stat.S_IFDIR)


def status(path: str | Path) -> os.stat_result | None:
    """Status of the file at a path, through links; None if there is none.

    Raises:
        OSError: no file can have this path: its name is too long, a link leads to itself, or a folder on the way is closed.
    """
    try:
        return Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        raise OSError(errno.EINVAL, "a path has no NUL characters", str(path)) from None


def is_missing(path: str | Path) -> bool:
    """Whether a valid path has no file. False for an invalid path; reading it raises the reason."""
    try:
        return status(path) is None
    except OSError:
        return False


def _descriptor(path: str | Path) -> int | None:
    """The number of the open descriptor that a path names: 1 for `/dev/stdout`, 63 for `/dev/fd/63`; else None."""
    name = Path(path)
    if str(name) in _DESCRIPTORS:
        return _DESCRIPTORS[str(name)]
    beside = name.name.isdecimal() and os.path.realpath(name.parent) == os.path.realpath("/dev/fd")
    return int(name.name) if beside else None


def _open_stream(path: str | Path) -> BinaryIO:
    """Open a pipe or device, or duplicate the descriptor that a path names: opening the file behind it would truncate it."""
    number = _descriptor(path)
    if number is None:
        return Path(path).open("wb")
    if number == _STDOUT:
        sys.stdout.flush()  # earlier output comes first
    return os.fdopen(os.dup(number), "wb")


def _replace(target: Path, content: bytes) -> None:
    temporary = target.parent / f".shardwright-{secrets.token_hex(8)}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o777)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def input_size(
    path: str | Path, what: str = "file", max_bytes: int | None = None, remedy: str = "check the path"
) -> int:
    """Check an input file before anything opens it (pipes and devices may never end), and return its size in bytes.

    Args:
        path: the file.
        what: what the file should be, for messages: "task file".
        max_bytes: larger files are refused; None for any size.
        remedy: end of the message if the file is missing or unreadable.

    Raises:
        InvalidInput: the file is missing, unreadable, not a regular file, or too large.
    """
    try:
        info = status(path)
    except OSError as error:
        raise InvalidInput(f"{path}: the {what} cannot be read ({error.strerror}); {remedy}") from None
    if info is None:
        raise InvalidInput(f"{path}: there is no such {what}; {remedy}")
    if stat.S_ISDIR(info.st_mode):
        raise InvalidInput(f"{path}: is a folder, expected a {what}; name a file in it")
    if not stat.S_ISREG(info.st_mode):
        raise InvalidInput(f"{path}: is a pipe or device, expected a {what}; save its output to a file and name that")
    if max_bytes is not None and info.st_size > max_bytes:
        raise InvalidInput(
            f"{path}: the {what} is larger than {max_bytes} bytes, the most that is read; check that it is the right one"
        )
    return info.st_size


def read_bytes(path: str | Path, what: str = "file", max_bytes: int | None = MAX_BYTES) -> bytes:
    """The content of a file, up to the size that it has at the call.

    Args:
        path: the file.
        what: what the file should be, for messages: "task file".
        max_bytes: larger files are refused unread; None for any size.

    Raises:
        InvalidInput: the file is missing, unreadable, not a regular file, or too large.
    """
    size = input_size(path, what, max_bytes)
    try:
        with Path(path).open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise InvalidInput(f"{path}: the {what} cannot be read ({error.strerror}); check the path") from error


def read_text(path: str | Path, what: str = "file", max_bytes: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file, read as by `read_bytes`.

    Raises:
        InvalidInput: the file cannot be read, or is not UTF-8.
    """
    content = read_bytes(path, what, max_bytes)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path}: the {what} is not UTF-8 text (byte 0x{content[error.start]:02x} at position {error.start}); save it as UTF-8"
        ) from None


def is_document(path: str | Path) -> bool:
    """Whether a file's name ends as that of JSON or YAML."""
    return Path(path).suffix.lower() in _KINDS


def parse_document(path: str | Path, what: str = "file") -> object:
    """The content of a JSON or YAML file: None, bool, int, float, str, list and dict with text keys.

    A name that ends in .json, .yaml or .yml decides the format. Otherwise a file that begins with `{` and a quote is JSON.
    YAML is read by the core schema of YAML 1.2, without tags; integers may have underscores. Both formats refuse duplicate
    keys, NaN, infinities and numbers too large for a float.

    Raises:
        InvalidInput: the file cannot be read, or breaks a rule of its format; the message names file, line and rule.
    """
    text = read_text(path, what)
    kind = _KINDS.get(Path(path).suffix.lower(), ".json" if _LIKE_JSON.match(text) else ".yaml")
    if kind == ".json":
        return parse_json(text, str(path), MAX_VALUES)
    from shardwright.documents.yaml_text import parse_yaml

    return parse_yaml(text, str(path), MAX_VALUES)


def check_distinct(paths: Sequence[str | Path], counted: str) -> None:
    """Check that no file or folder is named twice, also by another path.

    Raises:
        InvalidInput: one is; the message says that what was `counted` would count twice.
    """
    seen: set[str] = set()
    for path in paths:
        place = os.path.realpath(path)
        if place in seen:
            raise InvalidInput(f"{path}: is named twice, so that its {counted} would count twice; name it once")
        seen.add(place)


def dump_document(document: object, path: str | Path, otherwise: Literal[".json", ".yaml"] = ".yaml") -> str:
    """The text of a JSON or YAML file with this content, for `parse_document` to read.

    Each field of the document has its own line, and so has each item of a list in such a field.

    Args:
        document: the content.
        path: the file; JSON if its name ends in .json, YAML if it ends in .yaml or .yml.
        otherwise: the format if the name ends in none of these.

    Raises:
        InvalidInput: a number is NaN or infinite.
    """
    try:
        if _KINDS.get(Path(path).suffix.lower(), otherwise) == ".json":
            return dump_json(document)
        from shardwright.documents.yaml_text import dump_yaml

        return dump_yaml(document)
    except ValueError:
        raise InvalidInput(f"{path}: a number is NaN or infinite; files hold finite numbers only") from None
