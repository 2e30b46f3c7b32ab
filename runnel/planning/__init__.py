"""A distribution applied to a graph and a set of machines. Data only; nothing runs here."""
