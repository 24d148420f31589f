"""Delta tables that follow topics: definitions, the queries that keep them, their upkeep, the comparison with the log.

Must not know how a store is laid out.
"""
