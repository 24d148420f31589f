"""``mqspark`` and ``python -m mqspark``: the command line, which comes with the extra ``server``."""

from __future__ import annotations

import importlib.util
import sys

__all__ = ["main"]


def main() -> None:
    """The console script. A client's installation has it too, but not what it needs: then it says so."""
    for name in ("click", "numpy"):
        if importlib.util.find_spec(name) is None:
            sys.exit(f"mqspark: error: the command line needs {name}: pip install 'mqspark[server]'")
    from mqspark_server.cli import main as run

    run()


if __name__ == "__main__":
    main()
