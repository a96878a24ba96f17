#!/usr/bin/env bash
# Sets up the environment and checks style and types.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$(bash tools/setup_env.sh test)
"$python" -m ruff check
"$python" -m ruff format --check
"$python" -m mypy
