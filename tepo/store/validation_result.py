"""What the last weights of a run answered to its validation problems."""

from dataclasses import dataclass

from tepo.common.errors import UserError
from tepo.common.files import parse_json
from tepo.store.run_folder import AGAIN, RunFolder

AVERAGE = "val-core/average"


@dataclass(frozen=True)
class Validated:
    """share: of right responses. problems: hash of the validation problems, and of how they were asked."""

    problems: str
    share: float


def validated(run: RunFolder) -> Validated | None:
    """What is stored of a finished run, whatever the problems. Raises UserError where it is damaged."""
    if not run.finished():
        return None
    try:
        record = parse_json(run.validation_file.read_bytes())
        return Validated(str(record["problems"]), float(record["metrics"][AVERAGE]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise UserError("the validation is damaged: copied half?", where=str(run.validation_file), fix=AGAIN) from None
