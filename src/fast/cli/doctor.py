"""`fast doctor`: what users would otherwise find out one by one."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from fast.cli.across import PORT
from fast.cli.checkup import check_host
from fast.cli.display import write_json
from fast.cli.hosts import choose_secret
from fast.engine.attached.asking import resolved
from fast.engine.attached.echo import Finding, Line, Listening, ask_to_probe, probe_all
from fast.engine.attached.plan import spread
from fast.errors import UsageError
from fast.transport.tcp.connection import listen


def doctor_command(
    hosts: Annotated[
        str | None,
        typer.Option(
            help="Check the ways between these hosts, such as a,b. A doctor must listen on each of the others."
        ),
    ] = None,
    listen_at: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="HOST", help="Answer the doctors of other hosts, at this name or address."
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="The same on all hosts.")] = PORT,
    secret: Annotated[str | None, typer.Option(help="File with the secret that all hosts share.")] = None,
    plain_tcp: Annotated[bool, typer.Option("--plain-tcp", help="No secret and no encryption.")] = False,
    patience: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 5.0,
    json: Annotated[
        str | None, typer.Option("--json", help="Write the findings to this file; - is standard output.")
    ] = None,
) -> int:
    """Check this host, and with --hosts the ways between several hosts.

    The exit code is 1 if something is wrong.

    Type `fast doctor --listen b --secret job.secret` on every other host first, then `fast doctor --hosts a,b
    --secret job.secret` on this one.
    """
    if hosts is not None and listen_at is not None:
        raise UsageError(
            "--hosts and --listen exclude each other: --listen waits for the doctor with --hosts"
        )
    between = hosts is not None or listen_at is not None
    line = Line(port, choose_secret(secret, plain=plain_tcp) if between else None, patience)
    findings = []
    for finding in (*check_host(), *_between(hosts, line)):
        findings.append(finding)
        if json != "-":
            _show(finding)
    if json is not None:
        write_json(json, {"schema": 1, "findings": [msgspec.to_builtins(each) for each in findings]})
    if listen_at is not None:
        _answer(listen_at, line)
    return 0 if all(each.ok for each in findings) else 1


def _show(finding: Finding) -> None:
    print(f"{'ok   ' if finding.ok else 'WRONG'} {finding.check}: {finding.found}", flush=True)
    if finding.advice:
        print(f"      -> {finding.advice}", flush=True)


def _between(hosts: str | None, line: Line) -> Iterator[Finding]:
    """From here to all others, and from each of them that answers to all of its others."""
    if hosts is None:
        return
    names, _ = spread(hosts, None)
    own, listening = _own(names, line)
    others = [name for name in names if name != own]
    with contextlib.closing(listening) if listening is not None else contextlib.nullcontext():
        reached = []
        for name in others:
            found = probe_all([name], line)
            yield from found
            if any(each.check == f"way to {name}" and each.ok for each in found):
                reached.append(name)
        for name in reached:
            yield from ask_to_probe(name, [other for other in names if other != name], line)


def _own(names: list[str], line: Line) -> tuple[str, Listening | None]:
    """Which of these names is this host's; it answers there while the others are asked."""
    for name in names:
        try:
            listener = listen(*resolved(f"{name}:{line.port}"))
        except (OSError, UsageError):
            continue
        return name, Listening(listener, line)
    return "", None


def _answer(host: str, line: Line) -> None:
    """Until Ctrl-C."""
    address, port = resolved(f"{host}:{line.port}")
    try:
        listener: socket.socket = listen(address, port)
    except OSError as error:
        raise UsageError(f"--listen {host}: can't listen at {address}:{port}: {error.strerror}") from error
    print(f"fast: listening at {address}:{port} until Ctrl-C", file=sys.stderr, flush=True)
    with contextlib.closing(Listening(listener, line)), contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
