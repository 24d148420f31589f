"""/api/v1, one module a noun.

May touch the broker's state to read it, and its handlers, in the caller's name, to change something. Imported from
outside: the routers. Must not know sockets and how a broker is started.
"""
