"""Questions whose answers are known, put in several forms."""
