"""The client: producer, push consumer, lite pull consumer, admin. Import from ``mqspark`` or ``mqspark.aio``.

Pure decisions with an injected clock: allocate, rebalance, process_queue, faults, routes. Sockets: remoting.
What one client identity needs (routes, heartbeats): instance. What users hold: producer, push, litepull,
admin, and sync for programs without an event loop.
"""
