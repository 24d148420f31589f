"""POP: handing out messages, check points, acknowledgements, revival.

Imported from outside: ``acting_revival``, ``assignment``, ``checks``, ``cluster_routes``, ``order``, ``pop_service``,
``start_offsets``. Knows pulls and the state. Must not know administration.
"""
