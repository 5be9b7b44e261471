"""The axes of an objective: the parts that a YAML file composes."""
