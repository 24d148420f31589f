"""The presentation of messages that the command line, the HTTP API and the console share. Pure functions on messages.
Imported from outside: ``deadletters``, ``traces``. Must not know click, HTTP, a broker and a client.
"""
