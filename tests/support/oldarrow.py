"""Bodies of Arrow as old releases wrote them."""

from __future__ import annotations

import struct

import pyarrow as pa

from mqspark.record.compression import OLD_ARROW


def compressed_as_by_arrow_0_17(size: int) -> bytes:
    """A stream of one column of zeros, so many bytes. It says in the metadata of its batch alone that it is
    compressed."""
    packed = pa.py_buffer(struct.pack("<q", size) + pa.compress(bytes(size), "zstd", asbytes=True))
    column = pa.Array.from_buffers(pa.uint8(), packed.size, [None, packed])
    batch, sink = pa.record_batch([column], ["n"]), pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata={OLD_ARROW.decode(): "zstd"})
    raw: bytes = sink.getvalue().to_pybytes()
    return raw
