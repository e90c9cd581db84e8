"""A run on several hosts, FAST's own way: the first host is the coordinator's, the others come to it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from fast.cli.across import PORT, Across
from fast.engine import Job, LocalEngine, Outcome
from fast.engine.attached.asking import Ask, Door, ask, checked_address, resolved
from fast.engine.attached.coordinator import HOSTS, Coordinator
from fast.engine.attached.meeting import release
from fast.engine.attached.plan import Plan, spread
from fast.engine.attached.seating import secret_in
from fast.engine.attached.watching import Watcher
from fast.engine.local import Listener
from fast.errors import FastError, UsageError
from fast.loop.run_folder import say
from fast.runtime.record import script_digest
from fast.transport.tcp import Secret, parse_secret, read_secret

STDIN = "-"
_SSH_S = 10.0
"""How long `ssh` may take to end after the run has."""


@dataclass(frozen=True)
class Meeting:
    """What the command line of either side says about the coordinator."""

    coordinator: str
    secret: Secret | None
    secret_file: str | None
    """The text that was typed."""
    deadline_s: float

    def command(self, host: int) -> list[str]:
        """What starts another host's workers."""
        words = ["fast", "worker", "--coordinator", self.coordinator, "--host-number", str(host)]
        if self.secret is None:
            words.append("--plain-tcp")
        elif self.secret_file is not None:
            words += ["--secret", self.secret_file]
        return words if self.deadline_s == 60 else [*words, "--deadline", f"{self.deadline_s:g}"]


def choose_meeting(coordinator: str, secret_file: str | None, *, plain: bool, deadline_s: float) -> Meeting:
    """Check what was typed."""
    checked_address(coordinator)
    chosen = choose_secret(secret_file, plain=plain)
    return Meeting(coordinator, chosen, secret_file, deadline_s)


def choose_secret(secret_file: str | None, *, plain: bool) -> Secret | None:
    """From a file, standard input or the environment. Without one nothing is started, unless that is meant."""
    if plain:
        if secret_file is not None:
            raise UsageError("--secret and --plain-tcp exclude each other: leave one out")
        say(
            "warning: --plain-tcp: whoever can reach these hosts can read and change what they exchange, and take part"
        )
        return None
    if secret_file == STDIN:
        secret: Secret | None = parse_secret(sys.stdin.readline())
    else:
        secret = secret_in(os.environ) if secret_file is None else read_secret(secret_file)
    os.environ.pop("FAST_SECRET", None)  # the script and what it starts needn't have it
    if secret is None:
        raise UsageError(
            "several hosts need a secret that they share, and none was given. Make one with `fast secret job.secret`, "
            "copy it to every host (`scp -p job.secret HOST:`), and add --secret job.secret on each of them. "
            "FAST_SECRET_FILE or FAST_SECRET in the environment do as well; --plain-tcp goes without, in a network "
            "of your own."
        )
    return secret


@contextmanager
def met(across: Across, job: Job, threads: int | None, record: str | None) -> Iterator[None]:
    """On the coordinator's host: all others have come, and the job is this host's part."""
    plan = _plan(across, job, threads, record)
    first = f"[{plan.hosts[0]}]" if ":" in plan.hosts[0] else plan.hosts[0]
    meeting = choose_meeting(
        across.coordinator or f"{first}:{PORT}", across.secret, plain=across.plain, deadline_s=job.deadline_s
    )
    coordinator = Coordinator(plan, meeting.secret, release(), _place(meeting))
    coordinator.start()
    try:
        with _others(plan, meeting, coordinator, ssh=across.ssh):
            come(meeting, 0)
            part_of(job, plan, meeting, 0)
            yield
    except FastError:
        raise
    except BaseException:
        coordinator.fail(f"the run was interrupted on {plan.hosts[0]}")
        raise
    finally:
        coordinator.close()


def _plan(across: Across, job: Job, threads: int | None, record: str | None) -> Plan:
    hosts = across.hosts or ""
    names, counts = spread(hosts, None if ":" in hosts else job.workers)
    script, module = job.arguments["script"], job.arguments.get("module")
    return Plan(
        hosts=names,
        counts=counts,
        script=module or script,
        arguments=job.arguments["arguments"],
        module=module is not None,
        folder=os.getcwd(),
        digest=script_digest(Path(script)) or "",
        strategy=job.strategy,
        seed=job.seed,
        deadline_s=job.deadline_s,
        threads=threads,
        record=record,
    )


def come(meeting: Meeting, host: int) -> Plan:
    """Wait at the coordinator until all hosts have come; the plan of the run."""
    door = Door(meeting.coordinator, meeting.secret, host)
    values = ask(door, Ask(release(), "bring", host, HOSTS), meeting.deadline_s)
    return msgspec.msgpack.decode(values[0], type=Plan)


def part_of(job: Job, plan: Plan, meeting: Meeting, host: int) -> Job:
    """The job as this host runs it."""
    secret = None if meeting.secret is None else meeting.secret.text()
    job.part = plan.part(host, meeting.coordinator, os.environ.get("FAST_LISTEN", ""), secret)
    job.preload = [*job.preload, "fast.engine.attached.between"]
    return job


def run_part(engine: LocalEngine, job: Job, listen: Listener) -> Outcome:
    """Run this host's workers, and hear and tell why a run ends."""
    part = job.part
    assert part is not None
    watcher = Watcher(job, engine.stop)

    def heard(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            watcher.start()
        listen(event)

    try:
        return watcher.verdict(engine.run(job, heard))
    except BaseException:
        watcher.tell(f"the run was interrupted on {part.hosts[part.number]}")
        raise


def _place(meeting: Meeting) -> tuple[str, int]:
    """Where the coordinator listens: where the others look for it."""
    host, _ = checked_address(meeting.coordinator)
    address, port = resolved(meeting.coordinator)
    loopback = address.startswith("127.") or address == "::1"
    if loopback and address != host and host != "localhost":
        raise UsageError(
            f"{host} is {address} on this host, where no other host can reach it (see /etc/hosts). Give an address of "
            f"this host that the others can reach: --coordinator ADDRESS:{port}"
        )
    return address, port


# The other hosts


@contextmanager
def _others(plan: Plan, meeting: Meeting, coordinator: Coordinator, *, ssh: bool) -> Iterator[None]:
    """Tell the user what to type on them, or start them over ssh."""
    started = []
    for host, name in list(enumerate(plan.hosts))[1:]:
        if ssh:
            started.append(_over_ssh(name, host, plan, meeting, coordinator))
        else:
            say(f"on {name}, type: {shlex.join(meeting.command(host))}")
    if not ssh and meeting.secret is not None and meeting.secret_file is None:
        say("FAST_SECRET_FILE or FAST_SECRET must be set there as it is here")
    say(f"waiting for {', '.join(plan.hosts[1:])} at {meeting.coordinator}")
    try:
        yield
    finally:
        for process in started:
            try:
                process.wait(_SSH_S)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()


def _over_ssh(
    name: str, host: int, plan: Plan, meeting: Meeting, coordinator: Coordinator
) -> subprocess.Popen[bytes]:
    """The secret goes through ssh's standard input, so no command line shows it."""
    there = replace(meeting, secret_file=STDIN)
    words = [sys.executable, "-m", *there.command(host)]
    command = f"cd {shlex.quote(plan.folder)} && exec {shlex.join(words)}"
    try:
        process = subprocess.Popen(["ssh", "-o", "BatchMode=yes", name, command], stdin=subprocess.PIPE)
    except OSError as error:
        raise UsageError(f"--ssh: the command ssh can't be started: {error.strerror}") from error
    assert process.stdin is not None
    if meeting.secret is not None:
        process.stdin.write(meeting.secret.text().encode() + b"\n")
    process.stdin.close()

    def watch() -> None:
        code = process.wait()
        if code:
            coordinator.fail(f"ssh {name} ended with exit code {code}, before the run had begun")

    threading.Thread(target=watch, name="fast-ssh", daemon=True).start()
    return process
