"""What a worker computes: traced functions over one explicit carry."""
