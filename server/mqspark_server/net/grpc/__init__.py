"""The server's side of gRPC, over HTTP/2: connections, and calls of methods that others have.

    grpcwords                 codes, timeouts, the blocks that answers begin and end with
    messagereader             the messages of a request
    servedcalls               one call
    grpcconnection            one connection: TLS, HTTP/2, which calls are served when
    grpclistener              all connections of one port

Must not know what a method does.
"""
