"""Add files from other folders of the repository to the site: results, costs and published figures as pages, examples as files to read."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_FROM = {
    "benchmarks/results/*.md": "measurements",
    "benchmarks/results/*.svg": "measurements",
    "data/costs/README.md": "costs",
    "data/published/README.md": "published",
    "examples/*": "examples",
    "examples/plugin/*": "examples/plugin",
}
_DAY = r"\d{4}-\d{2}-\d{2}"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """The site's files, with those of the repository."""
    root = Path(config.config_file_path).parent
    for pattern, folder in _FROM.items():
        for path in sorted(root.glob(pattern)):
            if path.is_file():
                files.append(File.generated(config, f"{folder}/{path.name}", abs_src_path=str(path)))
    files.append(File.generated(config, "measurements/index.md", content=_list(root)))
    return files


def _list(root: Path) -> str:
    """A page with links to all measured pages."""
    lines = ["# All measured pages", "", "Each page names its command, date, commit and hardware.", ""]
    for path in sorted((root / "benchmarks/results").glob("*.md")):
        title = next(
            (line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")), path.stem
        )
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """The page; a measured one says which of its parts are older than the release."""
    if not page.file.src_uri.startswith("measurements/") or page.file.src_uri.endswith("/index.md"):
        return markdown
    root = Path(config.config_file_path).parent
    latest = re.search(rf"^## (\S+) \(({_DAY})\)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert latest is not None
    old = age(
        markdown, latest[1], latest[2], dict(map(_model, (root / "src/shardwright/cost/models").glob("*.safetensors")))
    )
    head, rest = markdown.split("\n")[:3], markdown.split("\n")[3:]
    return "\n".join([*head, "", f"*{old}*", *rest]) if old else markdown


def age(page: str, release: str, day: str, models: Mapping[str, str]) -> str:
    """Say what is older in a measured page than the release of a day; "" if nothing is.

    Args:
        page: the page.
        release: version of the latest release.
        day: date of that release.
        models: names of the bundled cost models, by device type.
    """
    told = []
    made = max(re.findall(_DAY, "\n".join(page.splitlines()[:6])), default=day)
    if made < day:
        told.append(f"Made before release {release} ({day}): its code is older.")
    for device, name in sorted(models.items()):
        named = sorted(set(re.findall(rf"\b{device}/convex-[0-9a-f]{{8}}", page)))
        if named and name not in named:
            told.append(f"Its cost model {', '.join(named)} is not the one bundled now, {name}.")
    return " ".join(told)


def _model(path: Path) -> tuple[str, str]:
    """Device type and name of a bundled model, from the head of its file."""
    content = path.read_bytes()
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return path.stem, head["__metadata__"]["name"]
