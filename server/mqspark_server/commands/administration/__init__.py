"""Commands that query and change a cluster over the wire; they work on RocketMQ's clusters, too.

Imported from outside: the commands, by name. Must not know sockets: the admin client has them.
"""
