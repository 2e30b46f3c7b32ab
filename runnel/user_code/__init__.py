"""The user's own modules: found by name or file, read without execution, signed."""
