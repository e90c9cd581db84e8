"""The inner loops of codecs, each written twice with bit-equal results.

`signing.py` holds torch operations, which run on any device and which tests compare with; the
functions of the same names in `signing_numba.py` are compiled loops for the CPU. `kernel` in
`choosing.py` makes one callable of the two, and imports numba only when it is first needed.

Equal bits need equal sums, so a sum is defined by halving (`summing.py`), and equal chances, so a
random number is a hash of seed, step and place (`hashing.py`).
"""
