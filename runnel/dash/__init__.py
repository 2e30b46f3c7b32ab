"""The live page: runs in a browser."""
