"""Programs in which every worker has a model of its own, and they mix. A server, if there is one, keeps a centre."""
