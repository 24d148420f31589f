"""Commands that query and change a cluster over the wire; they work on RocketMQ's clusters, too.

Must not know sockets: the admin client has them.
"""
