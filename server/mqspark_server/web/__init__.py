"""HTTP beside a broker or a name server: the guard in front, the application, the metrics.

Imported from outside: ``api``, ``callers``, ``events``, ``families``, ``http``, ``httpguard``, ``namesrvapi``,
``places``, ``problems``, ``schemaapi``, ``sessions``. Must not know the event loop's remoting connections.
"""
