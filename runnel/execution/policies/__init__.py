"""Stored policies in a run: initial parameters, groups that do not learn, and opponents."""
