"""Messages between queue and listener, and their results.

Must not know producers and consumers.
"""
