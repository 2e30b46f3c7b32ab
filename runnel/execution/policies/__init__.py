"""Stored policies in a run: what it begins with, what acts for groups that do not learn, and opponents."""
