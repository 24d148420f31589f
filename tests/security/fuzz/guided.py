"""The decoders under atheris, which changes bytes until they reach new code:

    python -m tests.security.fuzz.guided TARGET [--seconds 600] [--findings DIR] [--corpus DIR]

It begins with the cases in ``corpus``. Exit code 0: nothing was found. A finding is a file in DIR; as
``corpus/TARGET-NAME.case`` it is replayed by every run of the tests. The corpus of the package never grows by itself:
what reaches new code is kept in a working copy. Needs the package atheris.
"""

from __future__ import annotations

import argparse
import resource
import sys
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
MAX_CASE_BYTES = 1 << 16


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["mqspark"]):
        from tests.security.fuzz.targets import TARGETS
    from tests.security.fuzz.kinds import Decoding

    decoders = {name: kind for name, kind in TARGETS.items() if issubclass(kind, Decoding)}
    parser = argparse.ArgumentParser(prog="python -m tests.security.fuzz.guided", description=__doc__)
    parser.add_argument("target", choices=decoders)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    parser.add_argument("--corpus", type=Path, default=Path("working-corpus"), help="grows while it runs")
    arguments = parser.parse_args()
    arguments.findings.mkdir(parents=True, exist_ok=True)
    corpus = arguments.corpus  # libFuzzer ends the process, so the caller removes it
    corpus.mkdir(parents=True, exist_ok=True)
    for path in CORPUS.glob(f"{arguments.target}-*.case"):
        (corpus / path.name).write_bytes(path.read_bytes())
    target = decoders[arguments.target](corpus)

    def one(case: bytes) -> None:
        story = target.run(case)
        if story is not None:
            raise AssertionError(story)

    # Linux counts the peak of the process that has started this one, too.
    begun_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    options = [
        f"-max_total_time={arguments.seconds}",
        f"-max_len={MAX_CASE_BYTES}",
        "-timeout=5",
        f"-rss_limit_mb={begun_mib + 1024}",
    ]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={arguments.findings}/", str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
