"""The first prompt of a run, as the policy sees it: for whoever reads the screen, and stored with the run."""

import sys

from tepo.common.errors import RunFailed
from tepo.common.files import parse_json, write_json
from tepo.common.text import counted, spelt
from tepo.problems.prompts.control_tokens import listed, marked
from tepo.store.run_folder import RunFolder
from tepo.training.rollout.prompt_stream import PromptStream


def show_first_prompt(stream: PromptStream, *, tokens: bool = False) -> str:
    """Lines that begin with `| `, control tokens in « »; tokens: beneath them a line for each token with its id."""
    (first,) = stream.take(0, 1)
    given = first.tokens, stream.tokenizer, stream.asked.controls
    noted = ", control tokens in « »" if set(first.tokens) & stream.asked.controls.keys() else ""
    lines = [f"first prompt ({first.problem.id}), {counted(len(first.tokens), 'token')}{noted}:"]
    lines += [f"| {line}" for line in marked(*given).split("\n")]
    return spelt("\n".join([*lines, *(listed(*given) if tokens else [])]))


def keep_first_prompt(stream: PromptStream, folder: RunFolder) -> None:
    """Store and show the first prompt, once. Raises RunFailed where the run began with another one."""
    (first,), file = stream.take(0, 1), folder.prompt_file
    given = {"tokens": first.tokens, "stop": list(stream.stop)}
    if not file.exists():
        sys.stderr.write(f"{show_first_prompt(stream)}\n")
        text = spelt(marked(first.tokens, stream.tokenizer, stream.asked.controls))
        write_json(file, {"problem": spelt(first.problem.id), "text": text, **given})
        return
    try:
        same = given.items() <= parse_json(file.read_bytes()).items()
    except (ValueError, AttributeError):
        same = False
    if not same:
        what = "the first prompt is another one than when the run began, or its file was changed"
        fix = "provenance.json has the versions that the run began with"
        raise RunFailed(what, where=str(file), fix=fix)
