"""Commands for this machine: servers, store directories, jobs, contexts, the doctor.

Must not know what a server decides.
"""
