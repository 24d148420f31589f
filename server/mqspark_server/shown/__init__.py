"""The presentation of messages that the command line, the HTTP API and the console share. Functions on messages.
Imported from outside: ``deadletters``, ``setaside``, ``traces``. Must not know click, HTTP, a broker and a client.
"""
