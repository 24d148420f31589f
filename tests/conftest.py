from __future__ import annotations

import pytest
from hypothesis import settings

from mqspark import logs

# `make test` draws the same examples each time, so that whether a change passes is not a matter of luck;
# `make test-all` draws new ones (--hypothesis-profile=default).
settings.register_profile("same", derandomize=True)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def _all_log_lines() -> None:
    """A test sees the line that another one has caused in the same minute, too."""
    logs.forget()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
