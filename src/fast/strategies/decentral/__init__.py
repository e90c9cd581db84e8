"""Programs without servers that own the weights: every worker has a model of its own, and they mix."""
