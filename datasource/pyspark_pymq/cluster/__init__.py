"""What options of Spark mean on a cluster: the progress of a query, typed topics.

Imported from outside: ``payload``, ``typedcolumns``, ``typedbodies``, ``source_progress``,
``stream_offsets``. Must not know reads and writes.
"""
