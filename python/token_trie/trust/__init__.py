"""Evaluation on rows with gold labels, calibration of probabilities, and gates: when to accept an answer."""
