"""POP: handing out messages, check points, acknowledgements, revival.

Imported from outside: ``ackrun``, ``acting_pops``, ``acting_revival``, ``assignment``, ``checks``,
``cluster_routes``, ``foreignchecks``, ``handout``, ``order``, ``pop_service``, ``start_offsets``. Knows
pulls and the state. Must not know administration.
"""
