"""Processes to which permissions of files apply, also when root runs the tests."""

from __future__ import annotations

import ctypes
import os
import sys

_PR_CAPBSET_DROP = 24
_PASS_PERMISSIONS = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


def unprivileged(*command: str) -> list[str]:
    """The command, without root's right to open what permissions forbid."""
    return [sys.executable, "-m", __name__, *command]


def _run(command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in _PASS_PERMISSIONS if os.geteuid() == 0 else ():
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):  # in force from the next exec on
            raise OSError(ctypes.get_errno(), "this root cannot give up its rights")
    os.execvp(command[0], command)  # noqa: S606 - a test's own command


if __name__ == "__main__":
    _run(sys.argv[1:])
