"""What calibrations are worth."""
