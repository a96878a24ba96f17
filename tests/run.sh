#!/usr/bin/env bash
# Sets up the environment and runs all checks. Arguments go to pytest.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$(bash tools/setup_env.sh test)
"$python" -m ruff check
"$python" -m ruff format --check
exec "$python" -m pytest "$@"
