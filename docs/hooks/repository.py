"""Puts what lies elsewhere in the repository onto the site: measured results as pages, the examples as files to read."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_FROM = {
    "benchmarks/results/*.md": "measurements",
    "benchmarks/results/*.svg": "measurements",
    "examples/*": "examples",
}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """The site's files and those."""
    root = Path(config.config_file_path).parent
    for pattern, folder in _FROM.items():
        for path in sorted(root.glob(pattern)):
            if path.is_file():
                files.append(File.generated(config, f"{folder}/{path.name}", abs_src_path=str(path)))
    return files
