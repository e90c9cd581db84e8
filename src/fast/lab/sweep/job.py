"""A process of a sweep: it is told settings, trains with them one after another, and tells what they were worth.

It is started by `lab.sweep.jobs` with the number of its end of a socket and that of its parent, and ends
when either is gone.
"""

from __future__ import annotations

import socket
import sys

import msgspec

from fast.engine.messages import Channel
from fast.engine.process import die_with_parent, name_process
from fast.lab.settings import Settings
from fast.lab.sweep.trying import Trying
from fast.lab.tuning import Setting


def main() -> None:
    die_with_parent(int(sys.argv[2]))
    name_process("fast sweep")
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    messages = channel.messages()
    orders = next(messages)
    attempt = Trying.again(msgspec.convert(orders["settings"], Settings), orders["seed"])
    for message in messages:
        point = attempt(msgspec.convert(message, Setting))
        channel.send(msgspec.to_builtins(point))


if __name__ == "__main__":
    main()
