"""Searches for the settings of an algorithm that train best."""
