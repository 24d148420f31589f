"""Who may do what: users, policies, the table of all requests, and the gate in front of the handlers.

Source: RocketMQ's ACL 2.0 (module auth). Must not know a broker or a name server, sockets, the places of files, time or
random numbers: these come through constructors.
"""
