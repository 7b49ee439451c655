"""What the formula is made of: parameters, positions, scopes, and the products in which they meet."""
