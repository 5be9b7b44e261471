"""Memory and disk that a run takes."""
