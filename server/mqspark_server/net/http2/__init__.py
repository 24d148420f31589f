"""The server's side of HTTP/2 (RFC 9113), sans-I/O: bytes to events, answers to bytes.

    huffman, headerblocks     header blocks (HPACK, RFC 7541), read with a bounded dynamic table, written without one
    http2frames, allowance    kinds of frames, codes of errors; how much a peer may do that serves nothing
    http2streams              requests and what is to be sent for them
    requestheads              the header blocks of one connection, to heads of requests
    http2connection           one connection

Must not know sockets, time, and what requests mean.
"""
