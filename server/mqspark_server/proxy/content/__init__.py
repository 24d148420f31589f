"""What calls carry: names, messages and receipt handles, as clients of gRPC write them.

Must not know who calls.
"""
