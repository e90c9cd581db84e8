"""`fast secret`: the secret that all hosts of a run share."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fast.errors import UsageError
from fast.transport.tcp import new_secret


def secret_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="New file; it gets mode 0600.")],
) -> int:
    """Write a new secret to FILE, for `fast run --hosts ... --secret FILE`.

    Copy it to every host. Whoever can read it can take part in the run.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(
            f"{file} exists, and a secret never overwrites anything. Choose another name."
        ) from None
    except OSError as error:
        raise UsageError(f"{file} can't be written: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as opened:
        os.fchmod(opened.fileno(), 0o600)
        opened.write(new_secret().text() + "\n")
    print(f"fast: a new secret is in {file}. Copy it to every host: scp -p {file} HOST:", file=sys.stderr)
    return 0
