"""Problems that a program generates."""
