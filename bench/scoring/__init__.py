"""Whole answers by probability: what scoring a set costs, what its forms differ in, the best of 100,000."""
