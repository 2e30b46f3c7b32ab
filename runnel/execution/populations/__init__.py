"""Compares and copies members while they train."""
