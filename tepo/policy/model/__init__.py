"""The policy's model: found, loaded, and its attention."""
