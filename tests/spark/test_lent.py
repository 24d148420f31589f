"""What a task does to the process that Spark lent it."""

from __future__ import annotations

import subprocess
import sys


def test_a_collection_between_tasks_goes_over_nothing_that_stays() -> None:
    script = """
import gc
from pyspark_pymq.lent import settle
counts = []
for task in range(4):
    settle()
    counts.append(gc.get_freeze_count())
    gc.collect()  # as Spark's daemon does
assert counts[0] == 0, counts
assert counts[1] > 1000, counts
assert counts[1:] == counts[1:2] * 3, counts  # later garbage is collected as ever
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
