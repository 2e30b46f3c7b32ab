"""Runs from start to end."""
