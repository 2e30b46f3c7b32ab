"""An algorithm's loop as a typed dataflow graph."""
