"""Moves lists of arrays between workers: in one process, through shared memory, and between hosts over TCP."""
