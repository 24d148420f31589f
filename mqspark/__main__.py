"""``mqspark`` and ``python -m mqspark``: the command line, which comes with the extra ``server``.

``mqspark doctor`` needs no extra, ``mqspark doctor spark`` and ``mqspark job run`` only the extra ``spark``.
"""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    """The console script. A client installation has it without its dependencies; it then exits with the
    install command."""
    if importlib.util.find_spec("click") is None:
        if sys.argv[1:2] == ["doctor"] and sys.argv[2:3] != ["spark"]:
            from mqspark_server.commands.local.examination import examine_from

            sys.exit(examine_from(sys.argv[2:]))
        if sys.argv[1:2] == ["doctor"]:
            from pyspark_pymq.doctor import main as examine

            sys.exit(examine(sys.argv[2:]))
        if sys.argv[1:3] == ["job", "run"] and importlib.util.find_spec("pyspark") is not None:
            from mqspark_jobs.commandline import main as run_job

            sys.exit(run_job(sys.argv[3:]))
    for name in ("click", "numpy"):
        if importlib.util.find_spec(name) is None:
            sys.exit(f"mqspark: error: the command line needs {name}: pip install 'mqspark[server]'")
    from mqspark_server.cli import main as run

    run()


if __name__ == "__main__":
    main()
