"""The commands behind ``mqspark_server.cli``, and the modules that they share.

    administration/   administration of a cluster: brokers, topics, groups, settings
    messages/         sending, reading and finding messages
    local/            this machine: servers, stores, jobs, contexts, the doctor

Every command is loaded when it is called, so that each costs only its own imports. Must not know the insides
of a server: servers are only started here.
"""
