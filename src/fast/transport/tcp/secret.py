"""The secret of a job: 32 random bytes that all its participants share, and the keys derived from it.

    secret = new_secret()              on the machine that starts the job
    secret.text()                      43 characters of url-safe base64, for a file with mode 0600 or the environment
    secret = read_secret("job.secret") or parse_secret(text), on every other machine

No other key is handed over: each is derived from the secret (HKDF-SHA256, RFC 5869), under a label of its own and,
where it must not be the same in two jobs, for a session. A derived key says nothing about the secret or about
other derived keys.

A secret never shows itself: not in `repr`, `str` or an exception, and it can't be copied or pickled.
`text` and `derive` are the only ways to its bytes.
"""

from __future__ import annotations

import base64
import hmac
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final, Literal, NoReturn, SupportsIndex, final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fast.errors import UsageError

SECRET_BYTES: Final = 32
_LIMIT_BYTES = 4096
"""No file with a secret is longer, whatever else somebody points at."""
_TEXT = re.compile(r"[A-Za-z0-9_-]{43}=?")
_SALT = b"fast-training secret 1"

Label = Literal["authority", "session", "proof"]
"""What a derived key is for: the key that signs certificates; a mark by which participants of one session know each
other, which may be public; a key to prove with (HMAC) that one has the secret."""


@final
class Secret:
    """The secret of a job. Two are compared in constant time."""

    __slots__ = ("_raw",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, raw: bytes) -> None:
        if len(raw) != SECRET_BYTES:
            raise UsageError(
                f"a secret has {SECRET_BYTES} bytes, and this has {len(raw)}; make one with new_secret()"
            )
        self._raw = bytes(raw)

    def text(self) -> str:
        """The secret itself, as url-safe base64 without padding. Whoever reads it can join the job."""
        return base64.urlsafe_b64encode(self._raw).rstrip(b"=").decode("ascii")

    def derive(self, label: Label, session: str = "") -> bytes:
        """A key of 32 bytes for this purpose and session; the same on every machine."""
        info = b"\0".join((b"fast", label.encode("ascii"), session.encode("utf-8")))
        return HKDF(hashes.SHA256(), 32, salt=_SALT, info=info).derive(self._raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._raw, other._raw)

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "a Secret can't be copied or pickled; hand over secret.text() where it is meant to go"
        )


def new_secret() -> Secret:
    """A fresh secret from the system's random numbers."""
    return Secret(secrets.token_bytes(SECRET_BYTES))


def parse_secret(text: str) -> Secret:
    """The secret that `Secret.text` wrote. White space around it doesn't matter. A refusal doesn't repeat the text."""
    stripped = text.strip()
    if not _TEXT.fullmatch(stripped):
        raise UsageError(
            f"this isn't the text of a secret: {len(stripped)} characters were found, and 43 of url-safe base64 "
            "are needed. Make one with new_secret().text()"
        )
    return Secret(base64.urlsafe_b64decode(stripped.rstrip("=") + "="))


def read_secret(path: str | Path) -> Secret:
    """The secret in a file that nobody else can read: mode 0600 or stricter, and owned by us or by root."""
    try:
        # A pipe without a writer must not block; the descriptor is checked, so the file can't be exchanged meanwhile.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as wrong:
        raise UsageError(f"the secret in {path} can't be read: {wrong.strerror}") from None
    try:
        _check_private(os.fstat(descriptor), path)
        content = os.read(descriptor, _LIMIT_BYTES)
    finally:
        os.close(descriptor)
    try:
        return parse_secret(content.decode("ascii", "replace"))
    except UsageError as wrong:
        raise UsageError(f"{path}: {wrong}") from None


def _check_private(status: os.stat_result, path: str | Path) -> None:
    """Refuse what is no plain file, what others may read or write, and what another user owns."""
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path} isn't a regular file; write the secret into one with mode 0600")
    mode = stat.S_IMODE(status.st_mode)
    if mode & ~0o600:
        raise UsageError(
            f"{path} holds a secret and has mode {mode:04o}, so others may read or use it; 0600 or stricter is "
            f"needed: chmod 600 {path}"
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise UsageError(
            f"{path} holds a secret and belongs to user {status.st_uid}, who may read and change it; it must "
            f"belong to you (user {os.geteuid()}) or to root: copy it into a file of your own with chmod 600"
        )
