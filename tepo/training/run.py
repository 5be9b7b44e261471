"""The noun that everything below a command line is about: a run, with what its configuration names looked up once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo.common.files import content_hash
from tepo.config.run_config import RunConfig
from tepo.formula.formula import Needs
from tepo.formula.row import row_of
from tepo.policy.model.shapes import Shape, shape_of
from tepo.sampling.backends import SamplerBackend, sampler_backend
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import identity, run_id
from tepo.training.engine.backends import EngineBackend, engine_backend

if TYPE_CHECKING:
    from tepo.objectives import Objective


@dataclass(frozen=True)
class Run:
    """A configuration and the things that it names. Planning looks at many that differ in their layout alone, so that
    each thing is looked up when it is first asked for, and once for all of them.

    asked: the run that this one is, with settings chosen that it leaves open; its id, objective and sizes are those of
    that one. sizes: of the model, where the caller has them."""

    config: RunConfig
    asked: "Run | None" = None
    sizes: Shape | None = None

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """Everything but the seed that can change its result, when it was first asked for: this hashes the base and
        every problem. Raises UserError for files that are missing or broken."""
        return self.asked.identity if self.asked else identity(self.config)

    @cached_property
    def folder(self) -> RunFolder:
        """Its folder, which is called after its id. Raises UserError as `identity`."""
        if self.asked:
            return self.asked.folder
        return RunFolder(Path(self.config.store) / run_id(self.config, content_hash(self.identity)))

    @cached_property
    def needs(self) -> Needs:
        """What its objective takes beside responses and rewards. Raises UserError for what is wrong in the formula."""
        return self.asked.needs if self.asked else row_of(self.config.objective).formula.needs

    @cached_property
    def objective(self) -> "Objective":
        """Its objective, whose own functions are executed for it. Raises UserError as `load_objective`."""
        from tepo.objectives import load_objective  # takes torch, which a plan does without

        return self.asked.objective if self.asked else load_objective(self.config.objective)

    @cached_property
    def shape(self) -> Shape:
        """The sizes of its model. Raises UserError for a model that is neither known nor on this machine."""
        model = self.config.model
        return self.sizes or (self.asked.shape if self.asked else shape_of(model.path, model.revision))

    @cached_property
    def sampler(self) -> SamplerBackend:
        """What its sampler declares. Raises UserError for an unknown one."""
        return sampler_backend(self.config.sampler.kind)

    @cached_property
    def engine(self) -> EngineBackend:
        """What its engine declares. Raises UserError for an unknown one."""
        return engine_backend(self.config.engine.kind)

    @property
    def shares_weights(self) -> bool:
        """True where the sampler reads the trainer's live weights."""
        return self.sampler.shares_weights and self.engine.shares_weights

    def check_ranks(self, ranks: int) -> None:
        """Raise UserError for settings, or ranks, that its engine or its sampler cannot work with."""
        for backend in (self.engine, self.sampler):
            backend.check_settings(self.config, ranks)

    def get(self, key: str) -> Any:
        """The value of `section.setting`."""
        section, _, name = key.partition(".")
        return getattr(getattr(self.config, section), name)

    def having(self, key: str, value: Any) -> "Run":
        """The run with a part of its layout, `section.setting`, as it is given."""
        section, _, name = key.partition(".")
        settings = replace(getattr(self.config, section), **{name: value})
        return Run(replace(self.config, **{section: settings}), self.asked or self, self.sizes)
