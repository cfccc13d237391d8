"""Pictures of sets and decisions, in a terminal and as a page."""
