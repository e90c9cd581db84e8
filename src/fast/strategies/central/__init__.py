"""Programs with servers that own the weights, from lock-step to unbounded delay."""
