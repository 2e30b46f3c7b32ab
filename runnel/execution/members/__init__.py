"""Several runs by one command."""
