"""The parts of `simulator_error.py` that aren't about its cells."""
