"""How a command ends that was told to."""

from __future__ import annotations


class Ended(BaseException):
    """A signal has ended the command before its work was done. `code` is the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
