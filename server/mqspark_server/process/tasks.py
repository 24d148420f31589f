"""The end of tasks that run until somebody ends them."""

from __future__ import annotations

import asyncio
from typing import Any


async def end_all(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel those that were begun, and wait until they have ended. Raises none of their errors."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
