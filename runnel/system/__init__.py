"""This process and the operating system: signals, exits, stacks, limits, the terminal."""
