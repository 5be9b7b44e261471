"""Weights to measure: a run's, an untrained model's."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo.common import trust
from tepo.common.errors import UserError
from tepo.policy.model.model_location import CACHE, base_fingerprint, load_config
from tepo.store.run_folder import RunFolder, final_model


@dataclass(frozen=True)
class Weights:
    """The weights of a policy. path: a folder, a hub id or package:NAME. name: their identity in stored results."""

    path: str
    name: str
    revision: str | None = None
    trust_remote_code: bool = False

    @classmethod
    def of_run(cls, run: RunFolder, trust_remote_code: bool = False) -> "Weights":
        """The final model of a run. Raises UserError for a run without a complete checkpoint."""
        model = final_model(run.path)
        return cls(str(model), f"{run.path.name}/{model.name}", None, trust_remote_code)

    @classmethod
    def of_stored(cls, run: RunFolder) -> "Weights":
        """The same of a run as its folder describes it, which may be anybody's: it names code of its model, and the
        caller of the command permits it. Raises UserError where he does not."""
        code = bool(run.config()["full"]["model"]["trust_remote_code"])
        weights = cls.of_run(run, code)
        if code:
            what = "the run names code that comes with its model (trust_remote_code)"
            trust.ask(what, str(run.config_file), f"read the Python in {weights.path}")
        return weights

    @classmethod
    def of_base(cls, path: str, revision: str | None, trust_remote_code: bool = False) -> "Weights":
        """An untrained model. Raises UserError, also for a word that is no run, no folder and no hub id."""
        with _no_run(path):
            return cls(path, base_fingerprint(path, revision), revision, trust_remote_code)

    def check(self) -> None:
        """Raise UserError for a model that does not load, before anything is written for it."""
        from tepo.policy.model.weight_check import check_weights

        tokenizer_of(self)
        check_weights(self.path, self.revision, self.trust_remote_code)

    def rows(self) -> int:
        """Rows of the vocabulary."""
        return int(self.sizes().get_text_config().vocab_size)

    def sizes(self) -> Any:
        """The configuration of the model."""
        return load_config(self.path, self.revision, self.trust_remote_code)


def tokenizer_of(weights: Weights) -> Any:
    """The tokenizer of a model. Raises UserError, also for a word that is no run, no folder and no hub id."""
    from tepo.policy.model.load_policy import load_tokenizer

    with _no_run(weights.path):
        return load_tokenizer(weights.path, weights.revision, weights.trust_remote_code)


@contextmanager
def _no_run(path: str) -> Iterator[None]:
    """Say of a single word that nothing is called so."""
    try:
        yield
    except UserError as error:
        if "/" in path or path.startswith(("package:", CACHE)) or Path(path).exists():
            raise
        raise UserError(
            f"{path!r} is no run and no folder, and as a hub id it cannot be loaded: {error.what}",
            where=f"--model {path}",
            fix="`tepo list` shows the runs; check the spelling, the network or HF_HOME",
        ) from None
