"""The whole loop in one process: as one XLA program, or stepped from Python."""
