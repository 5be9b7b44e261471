"""A finished run as a repository of the Hugging Face hub."""

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

import yaml

from tepo.common.errors import UserError
from tepo.common.files import parse_json
from tepo.common.plugin_files import kept_files
from tepo.config.run_config import RunConfig
from tepo.evaluation.results import read_result
from tepo.jobs.model_card import CARD, card_of, config_of
from tepo.policy.model.model_location import on_hub, resolve
from tepo.store.checkpoint_files import ADAPTER, OPTIMISER, ROLLOUTS, read_progress
from tepo.store.evaluation_result import RESULT
from tepo.store.run_folder import RunFolder, final_model

CONFIG, OBJECTIVE = "tepo_config.json", "objective.yaml"
_UNSENT = (f"{OPTIMISER}/", f"{ROLLOUTS}/")  # of a checkpoint
_LOCAL = re.compile(r"(~|\.{0,2}/)")


def files_of(run: RunFolder, own: Collection[str] = ()) -> dict[str, bytes | Path]:
    """The files of a run to publish, by their paths in the repository: weights, tokenizer, adapters, card,
    configuration, objective and scores, without the names of this machine's folders. All files of the weights are read.
    own: texts of Python files that may be executed beside those of TEPO_PATH. Raises UserError for a run that is not
    finished, is damaged, has weights that are not finite, or has none any more."""
    if not run.finished():
        what = f"the run is not trained to its end: {run.outcome()}"
        raise UserError(what, where=str(run.path), fix="the command that trains it goes on from its newest checkpoint")
    from tepo.policy.model.weight_check import check_weights  # takes torch

    run.check_whole(contents=True)
    config, weights = config_of(run), final_model(run.path)
    if not config.model.trust_remote_code:  # code of the model is executed for no publication
        check_weights(str(weights))
    private = _folders_named(config)
    listed = read_progress(weights)["files"]
    files: dict[str, bytes | Path] = {name: weights / name for name in listed if not name.startswith(_UNSENT)}
    files[CARD] = _without(card_of(run, own), private).encode()
    stored = run.config()
    full = {key: value for key, value in stored["full"].items() if key not in ("store", "tracking")}
    full["sampler"] = full["sampler"] | {"servers": []}
    files[CONFIG] = _json(stored | {"full": full}, private)
    functions = _apart(kept_files(config.objective), files)
    files |= {name: text.encode() for name, text in functions.items()}
    files[OBJECTIVE] = _objective(config, list(functions), private)
    for name in run.measured():
        with contextlib.suppress(UserError):  # its samples are gone, or give other numbers: the card says so
            if read_result(run.evaluations / name):
                files[f"scores/{name}.json"] = _json(
                    parse_json((run.evaluations / name / RESULT).read_bytes()), private
                )
    for name, path in files.items():
        if name.startswith(f"{ADAPTER}/") and name.endswith("_config.json") and isinstance(path, Path):
            files[name] = _json(parse_json(path.read_bytes()), private)
    return dict(sorted(files.items()))


def size_of(content: bytes | Path) -> int:
    """Bytes of a file that would be sent."""
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def check_repository(name: str) -> None:
    """Raise UserError for what is no ORG/NAME."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
        wrong = "" if name.count("/") == 1 else "the name of its owner is missing"
    except HFValidationError as error:
        wrong = str(error).partition("\n")[0]
    if wrong:
        raise UserError(
            f"no name of a repository: {wrong}", where=name, fix="ORG/NAME, such as mathlab/qwen2.5-7b-tepo"
        )


def check_token(repository: str) -> None:
    """Raise UserError where nothing could be sent."""
    from huggingface_hub import get_token

    if not get_token():
        fix = "`hf auth login`, or HF_TOKEN with a token that may write"
        raise UserError("there is no token of the hub on this machine", where=repository, fix=fix)


def push(files: Mapping[str, bytes | Path], repository: str, message: str, *, private: bool, revision: str) -> str:
    """Send all files in one commit, and make the repository or the branch where it is missing. Returns the address of
    the commit. Raises UserError for what the hub refuses, and with exit code 1 where it does not answer."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi()
    with _explained(repository):
        api.create_repo(repository, private=private or None, exist_ok=True)
        if private and not api.model_info(repository).private:
            fix = "make it private on its page, choose another name, or leave --private out"
            raise UserError("the repository is there, and it is public", where=repository, fix=fix)
        if revision != "main":
            api.create_branch(repository, branch=revision, exist_ok=True)
        added = [CommitOperationAdd(name, content) for name, content in files.items()]
        return str(api.create_commit(repository, added, commit_message=message, revision=revision).commit_url)


@contextlib.contextmanager
def _explained(repository: str) -> Iterator[None]:
    """One sentence for what the hub or the network says."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except UserError:
        raise
    except Exception as error:  # many kinds; the file that could not be sent is around its reason
        reason = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        status = reason.response.status_code if isinstance(reason, HfHubHTTPError) else 0
        reply = next(filter(None, map(str.strip, str(reason).splitlines())), type(reason).__name__)
        refused = {
            401: ("the hub does not know the token", "`hf auth login`, or HF_TOKEN with a token that may write"),
            403: ("the token may not write there", "a token with the right to write, or another ORG"),
        }
        what, fix = refused.get(status, (f"the hub did not take it: {reply}", "the same command again sends all of it"))
        if not status:
            what, offline = f"the hub does not answer: {reply}", isinstance(reason, OfflineModeIsEnabled)
            fix = "unset HF_HUB_OFFLINE" if offline else "check the network and HF_ENDPOINT"
        raise UserError(what, where=repository, fix=fix, exit_code=2 if status in refused else 1) from None


def _apart(files: Mapping[str, str], used_names: Collection[str]) -> dict[str, str]:
    """Texts of files from several folders by names without one: a second `f.py` is `f_2.py`."""
    names = {name.casefold() for name in used_names}
    named: dict[str, str] = {}
    for path, text in files.items():
        tries = (f"{Path(path).stem}_{number}.py" for number in count(2))
        name = next(name for name in chain((Path(path).name,), tries) if name.casefold() not in names)
        names.add(name.casefold())
        named[name] = text
    return named


def _objective(config: RunConfig, functions: list[str], private: Mapping[str, str]) -> bytes:
    """The formula as a file for `objective=FILE.yaml`. functions: files beside it."""
    objective = config.objective
    about = (
        f"{objective['name']}, as it was trained; `tepo explain {objective['name']}` has the sources of its constants"
    )
    content = {
        "about": about,
        **{key: objective[key] for key in ("formula", "average", "keep", "constants") if objective.get(key)},
    }
    if functions:
        content["functions"] = functions
    return yaml.safe_dump(_shown(content, private), sort_keys=False, allow_unicode=True, width=120).encode()


def _folders_named(config: RunConfig) -> dict[str, str]:
    """Texts that say where things lie on this machine, the longest first, and what stands for each."""
    paths = [config.model.path, config.model.teacher or "", config.data.problems or ""]
    paths += [reward.file for reward in config.data.reward.values()]
    replacements = {str(Path(name).absolute()) + "/": "" for name in (config.store, Path.home(), ".")}
    for path in filter(None, paths):
        here = Path(path).expanduser()
        replacement = here.name if _LOCAL.match(path) or (here.exists() and not on_hub(path)) else path
        replacements |= {path: replacement, str(here.absolute()): replacement} if replacement != path else {}
        with contextlib.suppress(UserError):  # gone
            replacements |= {resolve(path): replacement} if resolve(path) != path else {}
    replacements.pop("/", None)
    return dict(sorted(replacements.items(), key=lambda item: -len(item[0])))


def _without(text: str, private: Mapping[str, str]) -> str:
    for named, replacement in private.items():
        text = text.replace(named, replacement)
    return text


def _shown(value: Any, private: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {_without(str(key), private): _shown(part, private) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(part, private) for part in value]
    return _without(value, private) if isinstance(value, str) else value


def _json(value: Any, private: Mapping[str, str]) -> bytes:
    return (json.dumps(_shown(value, private), indent=1, ensure_ascii=False) + "\n").encode()
