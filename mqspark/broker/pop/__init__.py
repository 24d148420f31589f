"""POP: handing out messages, check points, acknowledgements, revival.

Imported from outside: ``acting_revival``, ``assignment``, ``cluster_routes``, ``pop_service``. Knows pulls and the
state. Must not know administration.
"""
