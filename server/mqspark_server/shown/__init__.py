"""What the command line, the HTTP API and the console say of messages in the same way.

Pure functions on messages. Imported from outside: ``deadletters``, ``traces``. Must not know click,
HTTP, a broker and a client.
"""
