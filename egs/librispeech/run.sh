#!/usr/bin/env bash
# Sets up the environment, for which ESPnet's own recipes need a clone of it, and runs
# the recipe. Arguments go to run.py.
set -euo pipefail

recipe=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$(bash "$recipe/../../tools/setup_env.sh" recipe)
exec "$python" "$recipe/run.py" "$@"
