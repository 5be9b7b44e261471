from tepo.errors import RunFailed as RunFailed
from tepo.errors import UserError as UserError
from tepo.objectives import load_objective as load_objective
from tepo.problems.grader import GraderOptions as GraderOptions
from tepo.problems.grader import Verdict as Verdict
from tepo.studies.api import grade as grade
from tepo.studies.api import run as run
from tepo.studies.api import train as train
from tepo.studies.run_result import RunResult as RunResult
from tepo.studies.study_result import StudyResult as StudyResult

__version__: str
