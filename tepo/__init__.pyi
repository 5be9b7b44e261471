from tepo.api import grade as grade
from tepo.api import results as results
from tepo.api import run as run
from tepo.api import train as train
from tepo.common.errors import RunFailed as RunFailed
from tepo.common.errors import UserError as UserError
from tepo.objectives import load_objective as load_objective
from tepo.problems.grader import GraderOptions as GraderOptions
from tepo.problems.grader import Verdict as Verdict
from tepo.results.run_result import RunResult as RunResult
from tepo.results.study_result import StudyResult as StudyResult

__version__: str
