"""The command line behind ``mqspark_server.cli``: what commands share, and the rooms that they are in.

    administration/   what an operator asks and changes: cluster, brokers, topics, groups, settings
    messages/         sending, reading and finding messages
    local/            what runs or looks at this machine: servers, stores, jobs, contexts, the doctor

Every command is loaded when it is called, so that a simple one costs its own imports only. Imported from outside:
``loading``, ``local``, ``refusals``. Must not know the insides of a server: servers are only started here.
"""
