"""Reading and writing files: atomic writes, bounded reads, YAML and JSON documents that cannot do harm."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Literal

from shardwright.documents.json_text import dump_json, parse_json
from shardwright.errors import InvalidInput, ShardwrightError

MAX_BYTES = 64 * 2**20
"""Most bytes of a document; a task of 10,000 tables with access profiles takes about 40 MB."""

MAX_VALUES = 5_000_000
"""Most values in a document: what a small file can blow up to in memory stays below about 0.5 GB."""


_KINDS = {".json": ".json", ".yaml": ".yaml", ".yml": ".yaml"}
_LIKE_JSON = re.compile(r'\s*\{\s*["}]')


def write_atomically(path: str | Path, data: bytes | str) -> None:
    """Write a file so that others see the old content or the new, never a part, whenever the process ends.

    The data goes to a temporary file in the same folder, is forced to the disk, and takes the place of `path` in one step. What
    is not a regular file (a pipe, `/dev/stdout`) is written directly.

    Raises:
        InvalidInput: the path cannot be written to.
        ShardwrightError: writing failed half-way, as on a full disk; the old content is untouched.
    """
    content = data.encode("utf-8") if isinstance(data, str) else data
    target = Path(path).resolve()  # through links: the link stays one
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(content)
        else:
            _replace(target, content)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise InvalidInput(
            f"{path}: cannot be written ({error.strerror}); name a file in a folder you may write to"
        ) from error
    except OSError as error:
        raise ShardwrightError(
            f"{path}: writing failed ({error.strerror}); what was there before is untouched"
        ) from error


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


def read_text(path: str | Path, what: str = "file", max_bytes: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file.

    Args:
        path: the file.
        what: what the file should be, for messages: "task file".
        max_bytes: larger files are refused unread.

    Raises:
        InvalidInput: the file is missing, no file, not readable, too large or not UTF-8.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such {what}; check the path") from None
    except IsADirectoryError:
        raise InvalidInput(f"{path}: is a folder, expected a {what}; name a file in it") from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: the {what} cannot be read ({error})") from error
    if len(content) > max_bytes:
        raise InvalidInput(
            f"{path}: the {what} is larger than {max_bytes} bytes, the most that is read; split it or check the path"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path}: the {what} is not UTF-8 text (byte 0x{content[error.start]:02x} at position {error.start}); save it as UTF-8"
        ) from None


def parse_document(path: str | Path, what: str = "file") -> object:
    """The content of a JSON or YAML file: None, bool, int, float, str, list and dict with text keys.

    Which of the two it is, its name says by ending in .json, .yaml or .yml, and otherwise its beginning: `{` and a quote is JSON.
    YAML is read by the core schema of YAML 1.2, without tags; integers may have underscores. In both formats duplicate
    keys, NaN, infinities and numbers too large for a float are refused.

    Raises:
        InvalidInput: the file cannot be read, or is no such document; the message names file, line and rule.
    """
    text = read_text(path, what)
    kind = _KINDS.get(Path(path).suffix.lower(), ".json" if _LIKE_JSON.match(text) else ".yaml")
    if kind == ".json":
        return parse_json(text, str(path), MAX_VALUES)
    from shardwright.documents.yaml_reader import parse_yaml

    return parse_yaml(text, str(path), MAX_VALUES)


def dump_document(document: object, path: str | Path, otherwise: Literal[".json", ".yaml"] = ".yaml") -> str:
    """The text of a JSON or YAML file with this content, to be read by `parse_document`.

    Fields of the document have a line each, and so has each item of a list in such a field.

    Args:
        document: the content.
        path: the file; JSON if its name ends in .json, YAML if it ends in .yaml or .yml.
        otherwise: which of the two it is where its name ends in none of these.

    Raises:
        InvalidInput: a number is NaN or infinite.
    """
    try:
        if _KINDS.get(Path(path).suffix.lower(), otherwise) == ".json":
            return dump_json(document)
        from shardwright.documents.yaml_writer import dump_yaml

        return dump_yaml(document)
    except ValueError:
        raise InvalidInput(f"{path}: a number is NaN or infinite; files hold finite numbers only") from None
