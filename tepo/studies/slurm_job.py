"""Program name in Slurm jobs that were submitted before it became `tepo.launch.slurm_job`: they still run."""

import sys
from importlib import import_module

if __name__ == "__main__":
    sys.exit(import_module("tepo.launch.slurm_job").main(sys.argv[1:]))
