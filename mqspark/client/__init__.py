"""The client: producers, consumers, admin. Import from ``mqspark`` or ``mqspark.aio``.

Pure decisions with an injected clock: allocate, rebalance, process_queue, faults, routes, heartbeats.
Sockets: remoting.
What one client identity needs (routes, heartbeats): instance. What users hold: producer, transaction, push, pop,
litepull, admin, and sync for programs without an event loop.
"""
