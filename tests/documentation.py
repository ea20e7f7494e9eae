"""The code blocks of a page of the documentation, and the rules that they keep.

Every fence has a language, which decides its use:

- `bash` and `python` run, in order, in a folder that is empty at the page's start; Python blocks of a page share their names.
- with `title="file"` a block (`yaml`, `python`, `json`) is written to that file, which a later block of the page has to use.
- `yaml` without a title is a part of a task file: laid over the last task of the page, or a small one, it has to load.
- `output` is the output of the block before it, compared loosely: every word must occur, and … marks omissions.
- `text` is not checked: a formula, a tree of files.

Comments in the page steer this, and do not reach the reader: `<!-- run: bash` with code and `-->` runs unseen, `<!-- file: name` writes
unseen, `<!-- not run: reason -->` before a block leaves it out, `<!-- exits: 2 -->` before a block expects that exit code, and
`<!-- needs: torchrec -->` skips the page where a package is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

RUN = ("bash", "python")
FILES = ("yaml", "python", "json")
SHOWN = ("text", "output")
_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,}|~{3,})(?P<info>.*)$")
_INFO = re.compile(r'^(?P<language>[a-z]+)(?: title="(?P<title>[\w./-]+)")?$')
_COMMENT = re.compile(r"^(?P<name>run|file|not run|needs|exits): *(?P<rest>.*)$", re.DOTALL)
_CONTAINER = re.compile(r"^(?:[-*+] |\d+[.)] |!!! |\?\?\?\+? |=== )")


class BadPage(Exception):
    """A page that breaks the rules, with the place and the remedy."""


@dataclass(frozen=True)
class Block:
    """One block of code or output.

    Attributes:
        line: line of the page on which its code begins.
        language: language of the fence.
        code: the text, without the fence's indentation.
        title: the file that it is written to; None to run or show it.
        skipped: why it is not run; empty if it is.
        exits: the exit code that is expected.
    """

    line: int
    language: str
    code: str
    title: str | None = None
    skipped: str = ""
    exits: int = 0

    @property
    def action(self) -> str:
        """The use of the block: skip, file, bash, python, fragment, output or text."""
        if self.skipped:
            return "skip"
        if self.title is not None:
            return "file"
        return "fragment" if self.language == "yaml" else self.language


@dataclass
class Page:
    """A page's blocks in order, and the packages that it needs."""

    path: Path
    blocks: list[Block] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)


def read_page(path: Path) -> Page:
    """The blocks of a page.

    Raises:
        BadPage: for a fence without a known language, code by indentation, comments that mean nothing, and files that nothing uses.
    """
    return parse_page(path, path.read_text(encoding="utf-8"))


def parse_page(path: Path, text: str) -> Page:
    """The blocks of a page's text; see `read_page`."""
    page = Page(path)
    lines = text.splitlines()
    marks: dict[str, str] = {}  # marks that comments set for the next block
    number, container = 0, False
    while number < len(lines):
        line = lines[number]
        place = f"{path.name}:{number + 1}"
        fence = _FENCE.match(line)
        if fence:
            code, end = _until_closed(lines, number, fence, place)
            page.blocks.append(_block(fence["info"].strip(), code, number + 2, marks, place))
            marks, number = {}, end
        elif line.lstrip().startswith("<!--"):
            comment, end = _comment(lines, number, place)
            _obey(page, comment, number + 2, marks, place)
            number = end
        else:
            container = _check_line(lines, number, container, place)
            number += 1
            continue
        number += 1
    if marks:
        raise BadPage(f"{path.name}: a comment about a block ({', '.join(marks)}) has no block after it")
    _check_uses(page)
    return page


def _until_closed(lines: list[str], start: int, fence: re.Match[str], place: str) -> tuple[str, int]:
    indent = len(fence["indent"])
    for end in range(start + 1, len(lines)):
        if lines[end].strip() == fence["marks"]:
            inside = lines[start + 1 : end]
            if any(line.strip() and line[:indent].strip() for line in inside):
                raise BadPage(f"{place}: a line of the block is indented less than its fence")
            return "\n".join(line[indent:] for line in inside) + "\n", end
    raise BadPage(f"{place}: the block is never closed")


def _block(info: str, code: str, line: int, marks: dict[str, str], place: str) -> Block:
    said = _INFO.match(info)
    if said is None:
        raise BadPage(f'{place}: a fence needs a language and at most title="file", not {info!r}')
    language, title = said["language"], said["title"]
    known = FILES if title else (*RUN, "yaml", *SHOWN)
    if language not in known:
        raise BadPage(
            f"{place}: blocks {'with a title ' if title else ''}are one of {', '.join(known)}, not {language}"
        )
    if marks and language in SHOWN:
        raise BadPage(f"{place}: {language} is never run, so '{next(iter(marks))}' says nothing")
    return Block(line, language, code, title, marks.get("not run", ""), int(marks.get("exits", 0)))


def _comment(lines: list[str], start: int, place: str) -> tuple[str, int]:
    for end in range(start, len(lines)):
        if "-->" in lines[end]:
            text = "\n".join([*lines[start:end], lines[end].split("-->")[0]])
            return text.split("<!--", 1)[1].strip(), end
    raise BadPage(f"{place}: the comment is never closed")


def _obey(page: Page, comment: str, line: int, marks: dict[str, str], place: str) -> None:
    said = _COMMENT.match(comment)
    if said is None:
        raise BadPage(
            f"{place}: a comment is one of run, file, not run, exits and needs, with a colon: {comment[:40]!r}"
        )
    name, rest = said["name"], said["rest"]
    first, _, code = rest.partition("\n")
    if name in ("run", "file"):
        if not code.strip() or (name == "run" and first.strip() not in RUN):
            raise BadPage(
                f"{place}: unseen code is '<!-- run: bash' or python, or '<!-- file: name', the code, then '-->'"
            )
        language = first.strip() if name == "run" else "yaml"
        title = first.strip() if name == "file" else None
        page.blocks.append(Block(line, language, code + "\n", title, exits=int(marks.pop("exits", 0))))
    elif name == "needs":
        page.needs += [package.strip() for package in rest.split(",")]
    elif not rest.strip() or (name == "exits" and not rest.strip().isdigit()):
        raise BadPage(f"{place}: '{name}' needs {'a number' if name == 'exits' else 'a reason'} after the colon")
    else:
        marks[name] = rest.strip()


def _check_line(lines: list[str], number: int, container: bool, place: str) -> bool:
    """Whether the text from here on is inside a list or a box, where indented lines are text and not code."""
    line = lines[number]
    if not line.strip():
        return container
    if "<pre" in line:
        raise BadPage(f"{place}: code is written in fences, not in <pre>")
    if not line.startswith((" ", "\t")):
        return bool(_CONTAINER.match(line))
    if not container and line.startswith(("    ", "\t")) and (number == 0 or not lines[number - 1].strip()):
        raise BadPage(f"{place}: code by indentation is never run: use a fence with a language")
    return container


def _check_uses(page: Page) -> None:
    """Every file is used by a block after it, and every output has a block that prints it."""
    for index, block in enumerate(page.blocks):
        later = [other.code for other in page.blocks[index + 1 :] if other.action in RUN]
        if block.action == "file" and not any(_uses(code, Path(block.title or "")) for code in later):
            raise BadPage(f"{page.path.name}:{block.line}: no later block uses the file {block.title}")
        if block.action == "output" and not _ran_before(page.blocks[:index]):
            raise BadPage(f"{page.path.name}:{block.line}: no block that runs comes before this output: it may be text")


def _uses(code: str, file: Path) -> bool:
    return str(file) in code or (file.suffix == ".py" and re.search(rf"\b{re.escape(file.stem)}\b", code) is not None)


def _ran_before(blocks: list[Block]) -> bool:
    before = [block.action for block in blocks if block.action not in ("text", "output")]
    return bool(before) and before[-1] in RUN


def missing_words(shown: str, printed: str) -> list[str]:
    """The words of three letters or more that are shown and were not printed, in order of first sight."""

    def words(text: str) -> Iterator[str]:
        yield from re.findall(r"[A-Za-z_]{3,}", text)

    there = set(words(printed))
    return [word for word in dict.fromkeys(words(shown)) if word not in there]
