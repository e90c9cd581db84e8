"""Reading frames from a stream of bytes that come in any portions, without any I/O.

Nothing is believed before it is there: a length that is announced allocates nothing. The memory of
a payload grows with what has arrived, by an eighth ahead at most.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import final

from fast.errors import WireError
from fast.wire.frame import PREFIX_BYTES, announced, decode_header
from fast.wire.header import Header

Frame = tuple[Header, memoryview]
"""A header, and its payload in memory of its own."""


@final
class FrameReader:
    """One peer's stream. Whoever sends something that we refuse isn't read any more: in a stream
    nobody knows where the next frame would begin."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._refused = ""
        self._expect_header()

    def _expect_header(self) -> None:
        self._head, self._head_bytes = bytearray(), PREFIX_BYTES
        self._header: Header | None = None
        self._payload, self._checksum = bytearray(), 0

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """Take a portion in, and give the frames that are complete with it.

        What is refused raises WireError, after the frames that came before it; then always.
        """
        if self._refused:
            raise WireError(f"this stream isn't read any more: {self._refused}")
        frames: list[Frame] = []
        try:
            self._take(memoryview(data).cast("B"), frames)
        except WireError as error:
            self._refused = str(error)  # the error itself would keep what was fed
            self._expect_header()
        return self._given(frames)

    def _given(self, frames: list[Frame]) -> Iterator[Frame]:
        yield from frames
        if self._refused:
            raise WireError(self._refused)

    def finish(self) -> None:
        """The stream has ended; WireError if that was in the middle of a frame."""
        if self._head and not self._refused:
            missing = self._head_bytes - len(self._head) if self._header is None else self._missing
            self._refused = f"the stream ended in the middle of a frame; {missing} bytes are missing"
        if self._refused:
            raise WireError(self._refused)

    def _take(self, data: memoryview, frames: list[Frame]) -> None:
        while data:
            data = data[self._take_header(data) if self._header is None else self._take_payload(data) :]
            if self._header is not None and not self._missing:
                frames.append((self._header, self._checked_payload(self._header)))
                self._expect_header()

    @property
    def _missing(self) -> int:
        return 0 if self._header is None else self._header.payload_bytes - len(self._payload)

    def _take_header(self, data: memoryview) -> int:
        """Returns how much of the data was used; so does the next one."""
        used = min(len(data), self._head_bytes - len(self._head))
        self._head += data[:used]
        self._head_bytes, payload_bytes = announced(self._head)
        if payload_bytes > self._limit_bytes:
            raise WireError(
                f"a frame announces {payload_bytes} bytes, and {self._limit_bytes} is the limit here"
            )
        if len(self._head) == self._head_bytes > PREFIX_BYTES:
            self._header = decode_header(self._head)
            if self._header.checksum is None:
                raise WireError("a frame comes without the checksum of its payload")
        return used

    def _take_payload(self, data: memoryview) -> int:
        portion = data[: self._missing]
        self._payload += portion
        self._checksum = zlib.crc32(portion, self._checksum)
        return len(portion)

    def _checked_payload(self, header: Header) -> memoryview:
        if self._checksum != header.checksum:
            raise WireError(
                f"the payload of letter {header.tag!r} was changed on its way: its checksum is wrong"
            )
        return memoryview(self._payload)
