"""Sets, decisions and evaluations, drawn in a terminal and as HTML pages."""
