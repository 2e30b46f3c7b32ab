"""Searches for the settings with which an algorithm trains best."""
