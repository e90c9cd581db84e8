"""The secret of a job: read only from where nobody else can read it, and never shown."""

from __future__ import annotations

import copy
import hashlib
import hmac
import logging
import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from fast.errors import UsageError
from fast.transport.tcp import Secret, new_secret, parse_secret, read_secret


@pytest.fixture
def secret() -> Secret:
    return Secret(bytes(range(32)))


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "job.secret"
    path.write_text(text)
    path.chmod(mode)
    return path


def forms(secret: Secret) -> list[str]:
    """All by which somebody could recognise the secret."""
    raw = bytes(range(32))
    assert Secret(raw) == secret
    return [secret.text(), raw.hex(), repr(raw), repr(raw)[2:-1]]


# Text and files


def test_the_text_form_comes_back(secret: Secret) -> None:
    assert parse_secret(secret.text()) == secret
    assert parse_secret(f"  {secret.text()}=\n") == secret
    assert secret.text() == "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"


def test_new_secrets_differ() -> None:
    assert new_secret() != new_secret()


@pytest.mark.parametrize("text", ["", "short", "A" * 42, "A" * 45, "A" * 42 + "+", "A" * 43 + "==", "Ä" * 43])
def test_what_is_no_secret_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(UsageError, match="isn't the text of a secret") as refused:
        parse_secret(text)
    assert len(text) < 5 or text not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_secret_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match="32 bytes"):
        Secret(bytes(size))


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_is_read(tmp_path: Path, secret: Secret, mode: int) -> None:
    path = written(tmp_path, secret.text() + "\n", mode)
    assert read_secret(path) == secret
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_secret(str(link)) == secret


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601, 0o660, 0o777, 0o700])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, secret: Secret, mode: int) -> None:
    path = written(tmp_path, secret.text(), mode)
    with pytest.raises(UsageError, match=f"chmod 600 {path}"):
        read_secret(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_file_of_another_user_is_refused(tmp_path: Path, secret: Secret) -> None:
    path = written(tmp_path, secret.text())
    os.chown(path, 12345, -1)
    with pytest.raises(UsageError, match="belongs to user 12345"):
        read_secret(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A pipe without a writer too, and without waiting for one."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UsageError, match="isn't a regular file"):
        read_secret(tmp_path / "pipe")
    with pytest.raises(UsageError, match="isn't a regular file"):
        read_secret(tmp_path)
    with pytest.raises(UsageError, match="No such file"):
        read_secret(tmp_path / "missing")


def test_a_file_with_something_else_is_named_and_not_shown(tmp_path: Path) -> None:
    path = written(tmp_path, "a password of somebody")
    with pytest.raises(UsageError, match=str(path)) as refused:
        read_secret(path)
    assert "password" not in "".join(traceback.format_exception(refused.value))


# Keys


def test_derived_keys_are_those_of_rfc_5869(secret: Secret) -> None:
    """HKDF-SHA256 written out: extract with the salt, expand one block."""
    inner = hmac.digest(b"fast-training secret 1", bytes(range(32)), hashlib.sha256)
    assert secret.derive("proof", "job") == hmac.digest(inner, b"fast\0proof\0job\x01", hashlib.sha256)


def test_keys_differ_by_label_session_and_secret(secret: Secret) -> None:
    keys = [
        secret.derive("authority"),
        secret.derive("session", "a"),
        secret.derive("proof", "a"),
        secret.derive("proof", "b"),
        new_secret().derive("authority"),
    ]
    assert len({*keys}) == len(keys)
    assert secret.derive("proof", "a") == Secret(bytes(range(32))).derive("proof", "a")


# It never shows itself


def test_no_text_shows_the_secret(secret: Secret, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("test").warning("%s %r", secret, secret)
    shown = [repr(secret), str(secret), f"{secret}", f"{[secret]!r}", caplog.text]
    assert all("Secret(hidden)" in text for text in shown)
    assert not [form for form in forms(secret) for text in shown if form in text]


def test_it_has_no_attributes_to_dump(secret: Secret) -> None:
    assert not hasattr(secret, "__dict__")


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_is_neither_pickled_nor_copied(secret: Secret, copied: object) -> None:
    assert callable(copied)
    with pytest.raises(TypeError, match="copied or pickled"):
        copied(secret)


def test_it_has_no_hash(secret: Secret) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(secret)


PROGRAM = """
import os, subprocess, sys
from fast.transport.tcp import client_context, issue, read_secret, server_context
identity = issue(read_secret(sys.argv[1]), "job", 0)
contexts = server_context(identity), client_context(identity)
print(identity, contexts)
for process in ("self", str(os.getpid())):
    print(subprocess.run(["cat", f"/proc/{process}/cmdline", f"/proc/{process}/environ"], capture_output=True).stdout)
names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
print("open:", [os.readlink(name) for name in names if os.path.lexists(name)])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_nothing_shows_in_command_lines_environments_and_open_files(tmp_path: Path, secret: Secret) -> None:
    """Of a process that has read a secret and of one that it starts. It works without a folder for temporary files."""
    path = written(tmp_path, secret.text())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "TMPDIR": str(tmp_path / "missing")},
    )
    assert done.returncode == 0, done.stderr
    assert "TMPDIR" in done.stdout, "the environments weren't read"
    assert not [form for form in forms(secret) if form in done.stdout + done.stderr]
    opened = done.stdout.rpartition("open:")[2]
    assert "/dev/" in opened or "pipe" in opened
    assert "memfd" not in opened and path.name not in opened
