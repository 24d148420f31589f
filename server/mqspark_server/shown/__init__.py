"""What the command line, the HTTP API and the console share: the presentation of messages and of times, and the
settings of topics and groups with their names and limits.

Must not know click, HTTP, a broker and a client.
"""
