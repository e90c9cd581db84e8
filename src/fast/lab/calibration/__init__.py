"""Calibration: this machine, measured with real workers, as the model that simulations run on.

`measure` starts workers as a comparison does and times what they do in its steps (`trials`), `cluster_of`
makes a cluster of it, and `words` says what was found and how sure that is.
"""

from fast.lab.calibration.measuring import QUICK, Effort, Measurements, load_of_others, measure
from fast.lab.calibration.modelling import cluster_of

__all__ = ["QUICK", "Effort", "Measurements", "cluster_of", "load_of_others", "measure"]
