"""Reference results: what must stay as it is while code changes, unless a change says by name what it changes."""
