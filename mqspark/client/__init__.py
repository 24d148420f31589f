"""The client: producers, consumers, admin. Import from ``mqspark`` or ``mqspark.aio``.

Pure decisions with an injected clock: allocate, rebalance, process_queue, faults, topic_routes, heartbeats. Sockets:
remoting. Shared by the members of one client identity (routes, heartbeats): instance. Public classes: producer,
transaction, push, pop, litepull, admin, and sync for programs without an event loop.
"""
