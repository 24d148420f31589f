from __future__ import annotations

import pytest
from hypothesis import settings

# `make test` draws the same examples each time, so that whether a change passes is not a matter of luck;
# `make test-all` draws new ones (--hypothesis-profile=default).
settings.register_profile("same", derandomize=True)
settings.load_profile("same")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
