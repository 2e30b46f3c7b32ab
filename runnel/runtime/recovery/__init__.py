"""Saves a worker's state, and restores it in a replacement."""
