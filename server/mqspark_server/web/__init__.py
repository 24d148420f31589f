"""HTTP beside a broker: the guard in front, the application, the metrics.

Imported from outside: ``api``, ``callers``, ``events``, ``http``, ``httpguard``, ``problems``, ``sessions``. Must not
know the event loop's remoting connections.
"""
