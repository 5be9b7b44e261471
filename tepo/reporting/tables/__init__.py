"""Tables of a study: built, and rendered as text, CSV, Markdown, LaTeX and HTML."""
