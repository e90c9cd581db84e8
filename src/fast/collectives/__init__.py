"""Collectives as programs over send and receive.

Job: the mean of everybody's tensor, for worlds and transports that have none of their own.
May import: core, parts, view, errors.
Never: knows which transport carries the letters.
"""
