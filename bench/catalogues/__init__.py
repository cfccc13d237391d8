"""Sets of 10⁵ to 10⁸ members."""
