"""Add files from other folders of the repository to the site: results, costs and published figures as pages, examples as files to read."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_FROM = {
    "benchmarks/results/*.md": "measurements",
    "benchmarks/results/*.svg": "measurements",
    "data/costs/README.md": "costs",
    "data/published/README.md": "published",
    "examples/*": "examples",
    "examples/plugin/*": "examples/plugin",
}


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
