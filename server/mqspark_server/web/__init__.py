"""HTTP beside a broker or a name server: the guard in front, the application, the metrics.

Must not know the event loop's remoting connections.
"""
