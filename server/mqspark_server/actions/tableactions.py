"""Changes of live tables, which a job server makes: commands on its host, and consoles over HTTP."""

from __future__ import annotations

from typing import NamedTuple


class TableChange(NamedTuple):
    """``done`` follows the table's name in the sentence that reports the change. ``method`` and ``step`` belong to the
    request to a job server; ``step`` follows the name in its path."""

    verb: str
    text: str
    done: str
    method: str = "POST"
    step: str = ""
    is_dangerous: bool = False


PAUSE = TableChange(
    "pause",
    "Stop the query of a table until it is resumed.",
    "is paused: it follows its topic no longer, until it is resumed",
    step="/pause",
)
RESUME = TableChange(
    "resume",
    "Go on where the query of a table stopped.",
    "is resumed: it goes on where it stopped",
    step="/resume",
)
DROP = TableChange(
    "drop",
    "Forget a table, so that it follows its topic no longer. Its files stay, and its name in a catalog.",
    "is forgotten: it follows its topic no longer. Its files stay",
    method="DELETE",
    is_dangerous=True,
)
