"""``spark-submit jobs/run.py NAME [options]``: the jobs where Spark is started by its own command."""

import sys

from mqspark_jobs.commandline import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
