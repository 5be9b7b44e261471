"""Results that a person looks at: tables, figures, pages, claims and power."""
