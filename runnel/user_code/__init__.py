"""Finds the user's own modules by name or file, reads them without execution, and signs them."""
