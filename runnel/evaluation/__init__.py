"""Plays with trained policies."""
