"""How lists of arrays move between workers: in one process, through shared memory, and between hosts over TCP."""
