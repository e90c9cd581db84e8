"""Collectives as programs over send and receive.

Job: sums, means, gathering and handing out among several members, for worlds and transports that have
nothing faster of their own; and the cost models that say which way is the cheapest.
May import: core, parts, wire, view, errors.
Never: knows which transport carries the letters, or keeps anything but memory from one round to the next.
"""
