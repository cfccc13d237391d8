"""Decisions over HTTP: one model, whose batch answers all requests."""
