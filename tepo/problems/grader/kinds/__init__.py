"""The kinds of answers: how each is recognised and when two of them are equal. No sympy here."""
