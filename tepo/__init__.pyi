from tepo.analysis.run_result import RunResult as RunResult
from tepo.analysis.study_result import StudyResult as StudyResult
from tepo.api import grade as grade
from tepo.api import results as results
from tepo.api import run as run
from tepo.api import train as train
from tepo.common.errors import RunFailed as RunFailed
from tepo.common.errors import UserError as UserError
from tepo.objectives import load_objective as load_objective
from tepo.problems.grader import GraderOptions as GraderOptions
from tepo.problems.grader import Verdict as Verdict

__version__: str
