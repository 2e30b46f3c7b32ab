"""Interprets plans: what a worker does follows from the nodes of its fragment."""
