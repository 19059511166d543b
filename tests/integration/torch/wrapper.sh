#!/bin/sh
# A worker that is a shell script: it prepares its rank's surroundings, then becomes the program.
TMPDIR=${TMPDIR:-/tmp}/rank$RANK
export TMPDIR
mkdir -p "$TMPDIR"
exec "$TRAINING_PYTHON" -u "$(dirname "$0")/env_script.py" "$@"
