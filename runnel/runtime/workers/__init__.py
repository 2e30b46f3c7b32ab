"""Workers: actors, inference servers and learners, and their ends of streams."""
