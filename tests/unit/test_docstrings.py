"""Docstrings begin with a verb or a noun, and no two modules of the product have one name."""

from pathlib import Path

from tests.docstrings import PACKAGES, bad_docstrings, complaints, modules, repeated_modules


def test_the_tree() -> None:
    files = modules(PACKAGES)
    assert len(files) > 200
    assert complaints(files) == []


def test_what_is_found() -> None:
    text = (
        '"""Names of things."""\n\nclass A:\n    """What a thing is."""\n\n    def b(self):\n        """`Of` it."""\n'
    )
    assert list(bad_docstrings(text)) == [(4, "What a thing is."), (7, "`Of` it.")]
    assert list(bad_docstrings('def a():\n    """Whatever comes."""\n\n\nasync def b():\n    pass\n')) == []


def test_names_of_modules() -> None:
    files = [Path(name) for name in ("a/plan.py", "b/plan.py", "a/__init__.py", "b/__init__.py", "c/x.py")]
    files += [Path("sampling/backends/vllm.py"), Path("engine/vllm.py")]
    assert repeated_modules(files) == {"plan": [Path("a/plan.py"), Path("b/plan.py")]}
