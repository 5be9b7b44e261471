"""docs/api.md, from the docstrings:

    python -m tests.unit.api_page

writes it."""

import ast
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "api.md"
HEAD = """# API reference

On this page you can look up what `import tepo` offers, with types, arguments and errors. It is written from the
docstrings; [From Python](store.md#from-python) shows it in use.

"""
SECTIONS = {  # section -> file of each part, its name, and where they are not all public ones, the members shown
    "Studies, runs and verdicts": [
        *(("tepo/api.py", name) for name in ("run", "results", "train", "grade")),
        ("tepo/analysis/study_result.py", "StudyResult"),
        ("tepo/analysis/run_result.py", "RunResult"),
        ("tepo/problems/grader/options.py", "GraderOptions", ""),
        ("tepo/problems/grader/grader.py", "Verdict"),
        ("tepo/common/errors.py", "UserError"),
        ("tepo/common/errors.py", "RunFailed"),
    ],
    "Objectives": [
        ("tepo/objectives/__init__.py", "load_objective"),
        ("tepo/objectives/objective.py", "Objective", "advantages prepare loss"),
        ("tepo/objectives/batch.py", "Groups"),
        ("tepo/objectives/batch.py", "TokenBatch", ""),
        ("tepo/objectives/objective.py", "Plan", "select"),
        ("tepo/objectives/objective.py", "Loss"),
        ("tepo/objectives/objective.py", "Metrics", "means"),
        ("tepo/objectives/batch.py", "Collectives"),
        ("tepo/objectives/own_functions.py", "function"),
        ("tepo/objectives/own_functions.py", "Layout"),
    ],
    "Other trainers": [
        ("tepo/integrations/trl.py", "ObjectiveTrainer", ""),
        ("tepo/integrations/verl.py", "register"),
        ("tepo/integrations/prime_rl.py", "loss"),
        ("tepo/integrations/prime_rl.py", "advantages"),
    ],
}
Node = ast.ClassDef | ast.FunctionDef


def entry(node: Node, lines: list[str], members: str | None = None) -> str:
    """A heading or nothing for a member, the head in the source with a class's fields, the docstring, the members."""
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef) and ast.get_docstring(part)]
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and ast.unparse(part.target)[0] != "_"]
    code = lines[node.lineno - 1 : node.body[0].lineno - 1]
    if isinstance(node, ast.ClassDef):
        code += [line for field in fields for line in lines[field.lineno - 1 : field.end_lineno]]
    elif any(ast.unparse(decorator).endswith("property") for decorator in node.decorator_list):
        code = [" " * node.col_offset + "@property", *code]
    text = f"```python\n{dedent(chr(10).join(code))}\n```\n\n{ast.get_docstring(node)}\n\n"
    for method in methods if isinstance(node, ast.ClassDef) else ():
        made = any(ast.unparse(decorator) == "classmethod" for decorator in method.decorator_list)
        public = not made and not method.name.startswith("_")
        if public if members is None else method.name in members.split():
            text += entry(method, lines)
    return text


def page() -> str:
    text = HEAD
    for section, parts in SECTIONS.items():
        text += f"## {section}\n\n"
        for file, name, *members in parts:
            source = (ROOT / file).read_text(encoding="utf-8")
            (node,) = (part for part in ast.parse(source).body if isinstance(part, Node) and part.name == name)
            text += f"### {name}\n\n{entry(node, source.splitlines(), *members)}"
    return text.rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
