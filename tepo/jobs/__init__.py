"""One unit of work: train a run, measure it, validate it."""
