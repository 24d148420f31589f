"""Tables of tests that are read best as text."""

import re


def rows(text: str) -> list[str]:
    """The lines; one that begins with # is a comment, and one that is indented goes on with the line before it."""
    return re.sub(r"\n +", " ", re.sub(r"(?m)^#.*\n", "", text)).strip().splitlines()
