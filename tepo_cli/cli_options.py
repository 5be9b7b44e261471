"""Options that several commands share, alone or in bundles."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tepo.common import trust
from tepo.common.errors import UserError

if TYPE_CHECKING:
    from tepo.config.run_config import RunConfig
    from tepo.launch.run_units import Slots
    from tepo.store.facts import Facts
    from tepo.studies.plan import Unit
    from tepo.studies.study import Study


def _trusted(flag: bool) -> bool:
    trust.say(trusts=flag)
    return flag


def store_folder(text: str | Path) -> Path:
    """A folder of runs as it is typed. Raises UserError for what can be none."""
    from tepo.store.find_run import check_place

    if not str(text).strip():
        raise UserError("the store has no name", where="--store", fix="--store DIR")
    check_place(Path(text))
    return Path(text)


_MOST = 1024  # runs, GPUs or copies side by side
_TRUST = "Execute Python that a run or study names, of its model or objective, and reach servers that it names."
_LINES = "A line of the formula, e.g. --formula 'J=min(w, clip(w, 1 - low, 1 + high))*A'; may be repeated."
_DRY_RUN = "Show what would be evaluated and the first prompt as the model sees it."
_WRAP = "Around a request: auto (chat template if there is one), base or raw. Default: the run's, else auto."
_SYSTEM = "System prompt, '' for none. Default: that of all training prompts of the run, if they have one."
_OUT = "Folder for the results (default: eval/ of the run, or of base-… in the store)."
_API_KEY_ENV = "Environment variable with the key of an openai: server (default: OPENAI_API_KEY, if it is set)."
_SCALE = (
    "laptop, smollm2, small_lm, single_gpu, paper, or one of your own (default: laptop, or the only one of a study)."
)
_SEEDS = "0,1,2 or 'range(3)' (default: the study's; with --records all that are on record)."
_RECORDS = "Read what the store lacks from records; there need be no store."

Scale = Annotated[str | None, typer.Option(help=_SCALE, show_default=False)]
Seeds = Annotated[str | None, typer.Option(help=_SEEDS, show_default=False)]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        max=_MOST,
        help="Runs side by side, one thread (or --gpus) each (default: 1, or all visible GPUs).",
        show_default=False,
    ),
]
Store = Annotated[Path, typer.Option(parser=store_folder, metavar="DIR", help="Folder of runs.")]
StoreOfRun = Annotated[
    Path | None,
    typer.Option(parser=store_folder, metavar="DIR", help="Folder of runs (default: runs/).", show_default=False),
]
Records = Annotated[bool, typer.Option("--records", help=_RECORDS)]
Format = Annotated[str, typer.Option(help="terminal, markdown, latex, csv or html.")]
Trust = Annotated[bool, typer.Option("--trust", callback=_trusted, help=_TRUST)]
Lines = Annotated[list[str] | None, typer.Option("--formula", metavar="LINE", help=_LINES, show_default=False)]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override for every row, e.g. --set train.steps=20.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan; run nothing (`tepo plan` prices it).")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
Page = Annotated[Path, typer.Option(help="The page.")]
Results = Annotated[Path | None, typer.Option(help="Also write findings, claims and short tables as Markdown.")]


@dataclass(frozen=True)
class Asked:
    """Options of studies; what is shown is asked for as it was run."""

    scale: Scale = None
    seeds: Seeds = None
    store: Store = Path("runs")
    data: Annotated[
        str | None, typer.Option(help="Data of every row: an option of data=, or FILE.jsonl (default: the scale's).")
    ] = None
    override: Set = None

    @property
    def chosen_seeds(self) -> list[int] | None:
        return seed_numbers(self.seeds)

    @property
    def overrides(self) -> list[str]:
        """Overrides of every row by --set and --data; --data comes last and wins."""
        words = [*(self.override or []), *([f"data={self.data}"] if self.data else [])]
        trust.say(words)
        return words

    def plan(self, names: Sequence[str], formula: Sequence[str] = ()) -> "list[tuple[Study, list[Unit]]]":
        """The studies with their units. formula: overrides of every row, too."""
        from tepo.studies.plan_studies import plan_all

        words = [*formula, *self.overrides]
        return plan_all(names, self.scale, store=self.store, seeds=self.chosen_seeds, overrides=words)

    def read(self, names: Sequence[str], records: bool) -> "tuple[list[tuple[Study, list[Unit]]], Facts]":
        """The studies with their units, and what is known of their runs; nothing is run. Raises UserError where there
        is neither a store nor the wish to read records."""
        from tepo.studies.planned_facts import read_facts

        planned = self.plan(names)
        if not records:
            check_store_exists(self.store, or_records=True)
        return read_facts(planned, self.chosen_seeds, records=records)


@dataclass(frozen=True)
class Where:
    """Options of the place where runs are made."""

    jobs: Jobs = None  # the same for every command: a laptop run takes one core, a GPU run what --gpus says
    launcher: Annotated[str, typer.Option(help="local or slurm.")] = "local"
    gpus: Annotated[
        int | None,
        typer.Option(min=0, max=_MOST, help="GPUs of a node for each run (default: what it can use); 0: the CPU."),
    ] = None
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="partition=gpu, nodes=2, minutes=600, mem=900G …: as in slurm.yaml."),
    ] = None
    trust: Trust = False

    def slots(self) -> "Slots":
        """Raises UserError for what the launcher has no use for."""
        from tepo.launch.run_units import Slots
        from tepo.launch.sbatch import slurm_options

        if self.launcher == "slurm":
            return Slots(self.launcher, self.jobs, slurm=slurm_options(self.gpus, self.slurm or ()))
        slots = Slots(self.launcher, self.jobs, self.gpus)
        if self.slurm:
            raise UserError("--slurm without Slurm", where="the command line", fix="add --launcher slurm")
        return slots


@dataclass(frozen=True)
class How:
    """Options of a measurement; a configuration says all of it itself."""

    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N problems of each.")] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help=_DRY_RUN)] = False
    backend: Annotated[str, typer.Option(help="auto, torch, vllm or vllm_server.")] = "auto"
    tensor_parallel: Annotated[
        int, typer.Option(min=1, max=_MOST, help="GPUs one copy of the model is cut over (vllm).")
    ] = 1
    data_parallel: Annotated[int, typer.Option(min=1, max=_MOST, help="Copies of the model side by side (vllm).")] = 1
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], typer.Option(help="Of the weights.")] = "auto"
    revision: Annotated[str | None, typer.Option(help="Commit of a hub model.")] = None
    wrap: Annotated[Literal["auto", "base", "raw"] | None, typer.Option(help=_WRAP)] = None
    thinking: Annotated[
        bool | None, typer.Option(help="Reasoning mode of models that have one.", show_default=False)
    ] = None
    system: Annotated[str | None, typer.Option(help=_SYSTEM, show_default=False)] = None
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0
    out: Annotated[Path | None, typer.Option(help=_OUT, file_okay=False)] = None
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help=_API_KEY_ENV, show_default=False)] = None

    @property
    def given(self) -> list[str]:
        """The options that are not what they are by default."""
        changed = (option.name for option in fields(self) if getattr(self, option.name) != option.default)
        return [f"--{name.replace('_', '-')}" for name in changed]


def unbundled(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes each field of its bundles (dataclasses of options) as an option of its own, as Typer and
    callers in Python give them."""
    parameters = inspect.signature(command).parameters
    bundles: dict[str, Any] = {
        k: parameter.annotation for k, parameter in parameters.items() if is_dataclass(parameter.annotation)
    }
    plain_parameters = [parameter for name, parameter in parameters.items() if name not in bundles]
    options = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for bundle in bundles.values()
        for field in fields(bundle)
    ]

    def call(*arguments: Any, **values: Any) -> None:
        values |= {parameter.name: value for parameter, value in zip(plain_parameters, arguments, strict=False)}
        for name, bundle in bundles.items():
            values[name] = bundle(
                **{field.name: values.pop(field.name) for field in fields(bundle) if field.name in values}
            )
        command(**values)

    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__signature__ = inspect.Signature([*plain_parameters, *options])  # type: ignore[attr-defined]
    return call


def seed_numbers(text: str | None) -> list[int] | None:
    """The seeds of `--seeds`. Raises UserError for what is no list of whole numbers."""
    from tepo.studies.sweep import seeds_of

    return None if text is None else seeds_of(text, "--seeds")


def formula_words(lines: Sequence[str] | None) -> list[str]:
    """Overrides of `--formula NAME=EXPRESSION`. Raises UserError for what has no name."""
    for line in lines or ():
        if not line.partition("=")[0].strip().isidentifier():
            raise UserError("a line has a name", where=f"--formula {line!r}", fix="--formula 'J=min(w, 2)*A'")
    return [f"objective.{line.strip()}" for line in lines or ()]


def check_store_exists(store: Path, or_records: bool = False) -> None:
    """For commands that only read the store, or in its place the records. Raises UserError when it is no folder."""
    from tepo.store.find_run import check_place

    check_place(store)
    if not store.is_dir():
        fix = "--store DIR; `tepo ablate NAME` fills one"
        raise UserError(
            "no store there", where=str(store), fix=f"--records shows what ships; {fix}" if or_records else fix
        )


def compose_run(overrides: Sequence[str], store: Path | None) -> "RunConfig":
    """The configuration of a run by the words of its `tepo train`.

    The store does not go through Hydra, whose grammar has no ü, comma or bracket.
    """
    from dataclasses import replace

    from tepo.config.compose import compose
    from tepo.store.find_run import check_place

    config = compose(overrides)
    config = replace(config, store=str(store)) if store else config
    check_place(Path(config.store))
    return config
