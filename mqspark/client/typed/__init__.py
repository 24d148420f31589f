"""Messages with values: bodies by the schemas of a registry. Knows HTTP and schemas. Must not know brokers.

For other rooms:

- ``registryclient``: questions to a schema registry over HTTP;
- ``registeredschemas``: schemas by subject and by id, as a reader or a writer needs them;
- ``serializer``: Serializer, which producers and consumers take;
- ``typedlistener``: values of the messages that a listener gets.
"""
