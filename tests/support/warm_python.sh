#!/bin/sh
# The Python of Spark's planners, workers and daemons in tests: a fork of warm_python.py, where one runs.
if [ "$1" = -m ] && [ -n "$MQSPARK_WARM_PYTHON" ]; then
    exec "$MQSPARK_PYTHON" -I -S "$MQSPARK_LAUNCHER" "$MQSPARK_WARM_PYTHON" "$@"
fi
exec "$MQSPARK_PYTHON" "$@"
