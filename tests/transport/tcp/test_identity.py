"""Who may take part: real TLS between two contexts, and all that is refused."""

from __future__ import annotations

import contextlib
import copy
import datetime
import os
import pickle
import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from handshakes import authority_name, certificate_for, pem_of, shake_hands

from fast.errors import UsageError, WireError
from fast.transport.tcp import (
    Identity,
    Peer,
    Secret,
    client_context,
    issue,
    new_secret,
    peer_of,
    server_context,
)
from fast.transport.tcp.identity import NOT_AFTER, NOT_BEFORE, load_key_from_disk


@pytest.fixture
def secret() -> Secret:
    return new_secret()


@pytest.fixture
def one(secret: Secret) -> Identity:
    return issue(secret, "job", 1)


@pytest.fixture
def two(secret: Secret) -> Identity:
    return issue(secret, "job", 2, life=3)


def bare_context(
    identity: Identity, certificate: bytes, key: Ed25519PrivateKey, folder: Path
) -> ssl.SSLContext:
    """A connecting side that trusts this job and shows whatever certificate it likes."""
    path = folder / "own.pem"
    path.write_bytes(pem_of(certificate, key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=identity.authority)
    context.load_cert_chain(path)
    return context


# Together


def test_two_of_one_job_meet_and_know_each_other(one: Identity, two: Identity) -> None:
    met = shake_hands(server_context(one), client_context(two))
    assert met.done
    assert peer_of(met.server, one) == Peer(participant=2, life=3)
    assert peer_of(met.client, two) == Peer(participant=1, life=0)
    assert met.server.version() == met.client.version() == "TLSv1.3"


def test_bytes_cross_a_real_connection(one: Identity, two: Identity) -> None:
    letter = os.urandom(1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def connect() -> None:
            plain = socket.create_connection(listener.getsockname(), timeout=60)
            with client_context(two).wrap_socket(plain) as connection:
                assert connection.recv(1) == b"!"  # the accepting side speaks first: only now it has agreed
                connection.sendall(letter)

        sender = threading.Thread(target=connect)
        sender.start()
        accepted, _ = listener.accept()
        accepted.settimeout(60)
        with server_context(one).wrap_socket(accepted, server_side=True) as connection:
            assert peer_of(connection, one) == Peer(2, 3)
            connection.sendall(b"!")
            with connection.makefile("rb") as file:
                assert file.read(len(letter)) == letter
        sender.join()


def test_nothing_is_resumed(one: Identity, two: Identity) -> None:
    """A second connection that offers the first one's session gets a full handshake, certificates and all."""
    accepting, connecting = server_context(one), client_context(two)
    first = shake_hands(accepting, connecting)
    assert first.done
    again = shake_hands(accepting, connecting, first.client.session)
    assert again.done and not again.client.session_reused and not again.server.session_reused


def test_the_authority_is_the_same_everywhere_and_keys_are_fresh(secret: Secret) -> None:
    first, again = issue(secret, "job", 1), issue(secret, "job", 1)
    assert first.authority == again.authority == issue(secret, "other", 7).authority
    assert first.authority != issue(new_secret(), "job", 1).authority
    assert first.key.public_key() != again.key.public_key()
    assert first.certificate != again.certificate


# Refused by TLS


def test_another_secret_is_refused_by_both(one: Identity) -> None:
    stranger = issue(new_secret(), "job", 2)
    met = shake_hands(server_context(one), client_context(stranger))
    assert "certificate verify failed" in met.client_refused and "unknown ca" in met.server_refused


def test_a_stranger_that_checks_nothing_is_still_refused(one: Identity) -> None:
    """With another job's certificate: now the accepting side alone decides."""
    careless = client_context(issue(new_secret(), "job", 2))
    careless.verify_mode = ssl.CERT_NONE
    met = shake_hands(server_context(one), careless)
    assert "certificate verify failed" in met.server_refused and met.client_refused


def test_a_self_signed_stranger_is_refused(one: Identity, tmp_path: Path) -> None:
    """It even calls itself, and its authority, as this job does."""
    key = Ed25519PrivateKey.generate()
    forged = certificate_for(["fast:job/2/0"], key, key, issuer=authority_name(one))
    met = shake_hands(server_context(one), bare_context(one, forged, key, tmp_path))
    assert "certificate verify failed" in met.server_refused and met.client_refused


def test_a_participant_cannot_issue_certificates(one: Identity, two: Identity, tmp_path: Path) -> None:
    """One whose key was stolen, without the secret, can't make new names with it."""
    key = Ed25519PrivateKey.generate()
    made = certificate_for(["fast:job/9/0"], two.key, key)
    connecting = bare_context(one, made, key, tmp_path)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(pem_of(made, key) + pem_of(two.certificate))
    connecting.load_cert_chain(chain)
    met = shake_hands(server_context(one), connecting)
    assert "certificate verify failed" in met.server_refused
    with pytest.raises(WireError, match="isn't one of this job"):
        peer_of(made, one)


def test_who_shows_no_certificate_is_refused(one: Identity) -> None:
    nameless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nameless.check_hostname = False
    nameless.load_verify_locations(cadata=one.authority)
    met = shake_hands(server_context(one), nameless)
    assert "peer did not return a certificate" in met.server_refused and "required" in met.client_refused


@pytest.mark.parametrize("accepting", [True, False])
def test_older_tls_is_refused_by_either_side(one: Identity, two: Identity, accepting: bool) -> None:
    server_side, client_side = server_context(one), client_context(two)
    old = server_side if accepting else client_side
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    met = shake_hands(server_side, client_side)
    refused = met.client_refused if accepting else met.server_refused
    assert "unsupported protocol" in refused or "protocol version" in refused, met


def test_a_recorded_handshake_cannot_be_replayed(one: Identity, two: Identity) -> None:
    """Whoever has seen a certificate, and every byte of a connection, can do nothing with it without the key."""
    accepting = server_context(one)
    recorded = shake_hands(accepting, client_context(two))
    assert recorded.done and sum(map(len, recorded.sent_by_client)) > 1000
    to_server = ssl.MemoryBIO()
    again = accepting.wrap_bio(to_server, ssl.MemoryBIO(), server_side=True)
    with pytest.raises(ssl.SSLError, match=r"(?i)decrypt|bad.record"):
        feed(again, to_server, recorded.sent_by_client)
    with pytest.raises(ValueError, match="handshake not done"):
        peer_of(again, one)


def feed(connection: ssl.SSLObject, incoming: ssl.MemoryBIO, pieces: tuple[bytes, ...]) -> None:
    for piece in pieces:
        incoming.write(piece)
        with contextlib.suppress(ssl.SSLWantReadError):
            connection.do_handshake()


def test_a_certificate_without_its_key_cannot_be_shown(one: Identity, two: Identity, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLError, match=r"(?i)mismatch"):
        bare_context(one, two.certificate, Ed25519PrivateKey.generate(), tmp_path)


# Clocks


def signing_key(secret: Secret) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(secret.derive("authority"))


def test_an_expired_certificate_is_refused(secret: Secret, one: Identity, tmp_path: Path) -> None:
    """So dates are looked at, and those of ours have to be wide."""
    key = Ed25519PrivateKey.generate()
    past = (
        datetime.datetime(1990, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC),
    )
    expired = certificate_for(
        ["fast:job/2/0"], signing_key(secret), key, issuer=authority_name(one), dates=past
    )
    met = shake_hands(server_context(one), bare_context(one, expired, key, tmp_path))
    assert "certificate has expired" in met.server_refused


def test_certificates_are_valid_for_every_clock(two: Identity) -> None:
    for certificate in map(x509.load_der_x509_certificate, (two.authority, two.certificate)):
        assert certificate.not_valid_before_utc == NOT_BEFORE
        assert certificate.not_valid_after_utc == NOT_AFTER


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")
@pytest.mark.parametrize("year", [1971, 2000, 2060, 9000])
@pytest.mark.parametrize("purpose", ["sslserver", "sslclient"])
def test_a_host_whose_clock_is_wrong_accepts_it(
    two: Identity, tmp_path: Path, year: int, purpose: str
) -> None:
    authority, certificate = tmp_path / "authority.pem", tmp_path / "certificate.pem"
    authority.write_bytes(pem_of(two.authority))
    certificate.write_bytes(pem_of(two.certificate))
    seconds = int(datetime.datetime(year, 6, 1, tzinfo=datetime.UTC).timestamp())
    command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-attime", str(seconds)]
    done = subprocess.run(
        [*command, "-CAfile", str(authority), str(certificate)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


# Refused by peer_of


def test_another_session_of_the_same_secret_is_refused(secret: Secret, one: Identity) -> None:
    """TLS lets it through, since the secret is right; its name gives it away."""
    met = shake_hands(server_context(one), client_context(issue(secret, "yesterday", 2)))
    assert met.done
    with pytest.raises(WireError, match="belongs to session yesterday, and this is job"):
        peer_of(met.server, one)


@pytest.mark.parametrize(
    "uris",
    [
        ["fast:job/2"], ["fast:job/2/0/0"], ["fast:job/-2/0"], ["fast:job/02/0"], ["fast:job/2/x"],
        ["fast:job/2/0 "], ["fast:job/2/0\n"], ["fast:/2/0"], [f"fast:{'j' * 65}/2/0"], ["https://job/2/0"],
        ["FAST:job/2/0"], ["fast:job/2/" + "9" * 19], ["fast:job/1/0", "fast:job/2/0"], [],
    ],
)  # fmt: skip
def test_malformed_names_are_refused(secret: Secret, one: Identity, uris: list[str]) -> None:
    key = Ed25519PrivateKey.generate()
    made = certificate_for(uris, signing_key(secret), key, issuer=authority_name(one))
    with pytest.raises(WireError, match="doesn't name a participant"):
        peer_of(made, one)


def test_bytes_that_are_no_certificate_of_this_job_are_refused(one: Identity, two: Identity) -> None:
    damaged = two.certificate[:-1] + bytes([two.certificate[-1] ^ 1])
    for shown in (b"nonsense", two.certificate[:-9], damaged, issue(new_secret(), "job", 2).certificate):
        with pytest.raises(WireError, match="isn't one of this job"):
            peer_of(shown, one)
    assert peer_of(two.certificate, one) == Peer(2, 3)


def test_no_certificate_names_nobody(one: Identity, two: Identity) -> None:
    careless = server_context(one)
    careless.verify_mode = ssl.CERT_NONE
    met = shake_hands(careless, client_context(two))
    with pytest.raises(WireError, match="showed no certificate"):
        peer_of(met.server, one)


def test_a_certificate_that_tls_did_not_check_is_checked_here(one: Identity) -> None:
    """Even where somebody built a context that checks nothing."""
    careless = client_context(one)
    careless.verify_mode = ssl.CERT_NONE
    accepting = server_context(issue(new_secret(), "job", 2))
    accepting.verify_mode = ssl.CERT_NONE
    met = shake_hands(accepting, careless)
    assert met.done
    with pytest.raises(WireError, match="isn't one of this job"):
        peer_of(met.client, one)


@pytest.mark.parametrize(
    "name",
    [
        ("", 0, 0),
        ("a/b", 0, 0),
        ("a b", 0, 0),
        ("a" * 65, 0, 0),
        ("job", -1, 0),
        ("job", 0, -1),
        ("job", True, 0),
    ],
)
def test_names_that_cannot_be_told_apart_are_not_issued(secret: Secret, name: tuple[str, int, int]) -> None:
    with pytest.raises(UsageError, match="can't be a participant's name"):
        issue(secret, *name)


# Keys stay inside


def test_an_identity_does_not_show_its_key(one: Identity) -> None:
    raw = one.key.private_bytes_raw()
    assert repr(one) == str(one) == "Identity(session='job', participant=1, life=0)"
    assert repr(raw)[2:-1] not in repr(vars(one))


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_identity_is_neither_pickled_nor_copied(one: Identity, copied: Any) -> None:
    with pytest.raises(TypeError, match="copied or pickled"):
        copied(one)


class Looking(ssl.SSLContext):
    """A context that keeps what it was given to read."""

    seen = b""
    mode = 0

    def load_cert_chain(self, certfile: Any, keyfile: Any = None, password: Any = None) -> None:
        type(self).seen, type(self).mode = Path(certfile).read_bytes(), Path(certfile).stat().st_mode & 0o777
        super().load_cert_chain(certfile, keyfile, password)


def test_without_memory_files_the_key_on_disk_is_encrypted_and_gone_at_once(
    one: Identity, two: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    context = Looking(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=two.authority)
    load_key_from_disk(context, two)
    assert b"ENCRYPTED PRIVATE KEY" in Looking.seen and Looking.mode == 0o600
    assert two.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) not in Looking.seen
    assert not list(tmp_path.iterdir())
    met = shake_hands(server_context(one), context)
    assert met.done and peer_of(met.server, one) == Peer(2, 3)


def test_handshakes_per_second_are_printed(one: Identity, two: Identity) -> None:
    accepting, connecting = server_context(one), client_context(two)
    begun, rounds = time.perf_counter(), 50
    for _ in range(rounds):
        assert shake_hands(accepting, connecting).done
    print(f"{rounds / (time.perf_counter() - begun):.0f} handshakes per second, both sides in one thread")
