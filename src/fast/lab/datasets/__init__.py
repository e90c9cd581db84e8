"""The data sets that tasks train on: a catalogue, a cache, and the ways into it.

Job: fetch a set when the user asks for it, check it, keep it; hand it out to tasks.
May import: errors.
Never: downloads while something trains, installs, imports or runs what it downloaded.
"""

from fast.lab.datasets.catalogue import CATALOGUE, DIGITS, KJV, MNIST, MNIST_SMALL, DataSet, Part, find
from fast.lab.datasets.fetching import fetch, take
from fast.lab.datasets.installing import install
from fast.lab.datasets.store import (
    State,
    bundled,
    cache_folder,
    load,
    provenance,
    require,
    size_of,
    state_of,
)

__all__ = [
    "CATALOGUE",
    "DIGITS",
    "KJV",
    "MNIST",
    "MNIST_SMALL",
    "DataSet",
    "Part",
    "State",
    "bundled",
    "cache_folder",
    "fetch",
    "find",
    "install",
    "load",
    "provenance",
    "require",
    "size_of",
    "state_of",
    "take",
]
