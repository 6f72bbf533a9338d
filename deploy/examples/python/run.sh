#!/bin/sh
# Runs the daemon, a worker that publishes, and a script that follows, until the job is done.
# PYTHON is an interpreter that has pubsubpy.
trap 'kill $daemon $worker 2>/dev/null' EXIT
trap 'exit 130' INT TERM
cd "$(dirname "$0")" || exit
topic=jobs.$$
../../../bin/pubsubd serve --log-level=error & daemon=$!
"${PYTHON:-python3}" worker.py $topic & worker=$!
"${PYTHON:-python3}" follow.py $topic
