"""What calls carry: names, messages and receipt handles, as clients of gRPC write them.

Imported from outside: ``grpcmessages``, ``handedout``, ``receipthandles``, ``resources``, ``subscribed``,
``systemkeys``. Must not know who calls.
"""
