"""Trains several runs by one command."""
