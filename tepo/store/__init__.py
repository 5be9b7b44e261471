"""The store: run folders, ids, evaluations and records on disk."""
