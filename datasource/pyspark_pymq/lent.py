"""The Python process that Spark lends to a task, and takes back to lend it again.

Spark's daemon runs a full ``gc.collect()`` when a worker comes back from a task. With Spark, Arrow, NumPy and pandas
imported that goes over some 80,000 objects that all stay: 10 to 50 ms of processor time, which a micro-batch of a
hundredth of that work pays while Spark writes its checkpoint, and once more in the next batch when that begins before.

Must not know what the tasks are.
"""

from __future__ import annotations

import gc
import itertools

__all__ = ["settle"]

_tasks = itertools.count()


def settle() -> None:
    """Call when a task begins. With the process's second one everything that is there leaves the garbage collector's
    sight: a collection has just gone over it, so it is modules, classes and caches, and will stay.
    """
    if next(_tasks) == 1:
        gc.freeze()
