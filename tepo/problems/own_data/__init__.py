"""From a row of a user's own data to a problem: columns, statements, choices, golds."""
