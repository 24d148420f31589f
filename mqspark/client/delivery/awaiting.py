"""Functions of a program that may be coroutine functions, or hide one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether it says of itself that it is to be awaited; also an object whose ``__call__`` is."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def awaited(returned: Any) -> Any:
    """What a function returned. A lambda or a decorator hides a coroutine function, so its coroutine is awaited here;
    what that returns as well."""
    while inspect.isawaitable(returned):
        returned = await returned
    return returned
