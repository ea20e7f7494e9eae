"""Takes the comments that steer the tests of code blocks out of the pages; `tests/documentation.py` says what they mean."""

import re

_COMMENT = re.compile(r"^ *<!-- *(?:run|file|not run|needs|exits):.*?-->\n?", re.DOTALL | re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page as readers see it."""
    return _COMMENT.sub("", markdown)
