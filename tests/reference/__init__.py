"""Reference results: what must stay as it is while code changes, unless a change says by name what it changes.

`python -m tests.reference runs` trains ten small runs and compares the hashes of their metrics and weights with those
of this kind of CPU in `runs.json`. `python -m tests.reference texts FOLDER` writes every recorded table and claim as
text, so that two commits are compared by `diff -r`.
"""
