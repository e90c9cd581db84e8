"""Bytes: frames, bounds, version, checksum. It doesn't know what a gradient is.

Job: turn a letter's header into bytes and back, refusing what is not ours.
May import: errors.
Never: touches a socket, a tensor's values, or the clock.
"""

from fast.wire.frame import HEADER_BYTES, HEADER_LIMIT_BYTES, Header, decode_header, encode_header

__all__ = ["HEADER_BYTES", "HEADER_LIMIT_BYTES", "Header", "decode_header", "encode_header"]
