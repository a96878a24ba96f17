#!/usr/bin/env bash
# Sets up the environment and runs all checks. Arguments go to pytest.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tests/style.sh
python=$(bash tools/setup_env.sh test)
# A process a core, each with one thread, and a file's tests in one of them.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$python" -m pytest --numprocesses auto --dist loadfile "$@"
