"""From the text of a response or a gold to one spelling of its answer."""
