"""Members that are compared and copied while they train."""
