"""One module per output format, each with `render(table) -> str` (terminal: a rich renderable)."""
