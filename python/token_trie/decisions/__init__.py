"""One answer out of a set, its probability and those of the others."""
