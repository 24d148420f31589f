"""Commands for this machine: servers, store directories, jobs, contexts, the doctor.

Imported from outside: the commands, by name. Must not know what a server decides.
"""
