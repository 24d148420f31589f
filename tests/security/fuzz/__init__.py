"""A fuzzer for everything that a stranger or a failing disk chooses: frames, headers, bodies, HTTP, store directories.

    python -m tests.security.fuzz [TARGET ...] [--seconds 600] [--seed N] [--findings DIR]

``cases`` makes values, ``victims`` runs and watches servers, ``targets`` has one class a target. Each target
runs on a seed that is printed, so a run can be repeated. What a case does wrong is a finding: a freeze of more
than one second, memory that grows by more than 64 MB and stays, a traceback, an exception of an undeclared
type, a message that is lost without a word. A finding is written to DIR as a file; the
ones found so far are kept in ``corpus`` and replayed by ``tests/security/test_fuzz.py``. ``decoders`` are targets that
``guided`` takes, too: atheris changes bytes until they reach new code.
"""
