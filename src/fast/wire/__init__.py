"""Bytes: frames, bounds, version, checksum. It doesn't know what a gradient is.

Job: turn a letter's header into bytes and back, find frames in a stream, refuse what is not ours.
May import: errors.
Never: touches a socket, a tensor's values, or the clock.
"""

from fast.wire.frame import HEADER_BYTES, HEADER_LIMIT_BYTES, decode_header, encode_frame, encode_header
from fast.wire.header import DIMENSIONS, ITEM_BYTES, STEPS_LIMIT, TAG_CHARACTERS, Header, fault_of_shape
from fast.wire.reader import Frame, FrameReader

__all__ = [
    "DIMENSIONS",
    "HEADER_BYTES",
    "HEADER_LIMIT_BYTES",
    "ITEM_BYTES",
    "STEPS_LIMIT",
    "TAG_CHARACTERS",
    "Frame",
    "FrameReader",
    "Header",
    "decode_header",
    "encode_frame",
    "encode_header",
    "fault_of_shape",
]
