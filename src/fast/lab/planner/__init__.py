"""The planner: which technique, how fast and why, before anybody pays for a cluster.

Job: the closed forms of the literature (`closed_forms`, beside `fast.collectives.cost`), what one strategy would
take and send in a situation (`prediction`, a short simulation with sizes only), and advice built on both.
May import: everything below cli.
Never: trains. Whoever wants to know whether an advice was right runs it, in the simulator or for real.
"""
