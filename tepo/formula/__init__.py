"""An objective as its formula: the language, its functions, and what follows from the text."""
