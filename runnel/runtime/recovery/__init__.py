"""How a worker's state is saved, and how another worker takes over."""
