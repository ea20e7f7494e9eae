"""Remove the comments that steer the tests of code blocks from the pages; `tests/documentation.py` explains them."""

import re

_COMMENT = re.compile(r"^ *<!-- *(?:run|file|not run|needs|exits):.*?-->\n?", re.DOTALL | re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page as readers see it."""
    return _COMMENT.sub("", markdown)
