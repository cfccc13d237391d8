"""What answers are worth: evaluated on rows with gold labels, calibrated, and held back where they are not sure."""
