"""POP: handing out messages, check points, acknowledgements, revival.

Imported from outside: ``assignment``, ``cluster_routes``, ``service``. Knows pulls and the state. Must not know
administration.
"""
