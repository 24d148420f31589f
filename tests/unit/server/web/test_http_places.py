"""Places for long requests over HTTP: who takes them all keeps others out."""

from __future__ import annotations

import pytest

from mqspark_server.web.places import Places
from mqspark_server.web.problems import Problem


def test_one_caller_has_a_half() -> None:
    places = Places("tails are open")
    held = [places.take("mallory", "10.0.0.1", 8, retry_s=10) for _ in range(4)]
    with pytest.raises(Problem, match="4 tails are open already, 4 of them by this caller") as refused:
        places.take("mallory", "10.0.0.2", 8, retry_s=10)
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "10"})
    nobodys = [places.take("", "10.0.0.1", 8, retry_s=10) for _ in range(4)]
    with pytest.raises(Problem, match="8 tails are open already, 0 of them"):
        places.take("bob", "10.0.0.1", 8, retry_s=10)
    for place in (*held, *nobodys):
        place.leave()
    assert places.held == 0
    assert places.take("mallory", "10.0.0.1", 1, retry_s=10).holder == "User:mallory", (
        "one, however few there are"
    )
    with pytest.raises(Problem):
        places.take("bob", "10.0.0.1", 0, retry_s=10)
