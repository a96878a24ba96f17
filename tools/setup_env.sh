#!/usr/bin/env bash
# Makes the project's virtual environment, or brings it up to date, and prints the
# path of its Python. Its packages have the versions of tools/constraints.txt, which
# are known to work together.
#
# Usage: tools/setup_env.sh EXTRA   (train, recipe or test: see setup.py)
#
# ESPNET_FASTFORMER_VENV  where the environment is (default: .venv in the repository)
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "Usage: $0 EXTRA" >&2
    exit 2
fi
extra=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${ESPNET_FASTFORMER_VENV:-$root/.venv}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac

log() {
    echo "setup_env.sh: $*" >&2
}

# Python.h because two of ESPnet's dependencies are built on the spot.
lacks='
import os, sys, sysconfig
lacks = []
if not (3, 12) <= sys.version_info[:2] <= (3, 13):
    lacks.append("version 3.12 or 3.13")
for module in ("venv", "ensurepip"):
    try:
        __import__(module)
    except ImportError:
        lacks.append(module)
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    lacks.append("Python.h")
print(sys.version.split()[0], "lacks" if lacks else "fits", ", ".join(lacks))
'

find_python() {
    local candidate found tried=""
    for candidate in python3.12 python3.13 python3 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[23].*/bin/python3; do
        command -v "$candidate" >/dev/null || continue
        # A pyenv shim is there even for versions that are not active, and fails.
        found=$("$candidate" -c "$lacks" 2>/dev/null) || found="does not start"
        case $found in
            *" fits "*)
                echo "$candidate"
                return
                ;;
        esac
        tried+="  $candidate: $found"$'\n'
    done
    log "no Python fits. Needed: 3.12 or 3.13 with venv and its C headers. Tried:"
    printf '%s' "${tried:-  nothing: no python3 on PATH$'\n'}" >&2
    log "Debian, Ubuntu: apt-get install python3.12 python3.12-venv python3.12-dev"
    log "anywhere: pyenv install 3.12, or conda create -n py312 python=3.12"
    return 1
}

# What is built is in C, and for Python 3.13 in C++ too.
check_compilers() {
    local compiler compilers=("${CC:-cc}")
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 13))' &&
        compilers+=("${CXX:-c++}")
    for compiler in "${compilers[@]}"; do
        # Without the options that CC may have.
        if ! command -v "${compiler%% *}" >/dev/null; then
            log "no compiler ${compiler%% *}." \
                "Debian, Ubuntu: apt-get install build-essential"
            exit 1
        fi
    done
}

python=$venv/bin/python
stamp=$venv/.espnet-fastformer-$extra
state=$(cd "$root" && pwd &&
    cat setup.py pyproject.toml tools/constraints.txt espnet_fastformer.pth \
        espnet_fastformer/__init__.py | cksum)

if [ "$(cat "$stamp" 2>/dev/null)" != "$state" ] || ! [ -x "$python" ]; then
    if ! "$python" -c pass 2>/dev/null; then
        base=$(find_python)
        log "making $venv with $base"
        # What is there already goes only if it is an environment, and a broken one.
        clear=$([ -f "$venv/pyvenv.cfg" ] && echo --clear || true)
        "$base" -m venv $clear "$venv"
    fi
    "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >&2
    if ! "$python" -c 'import ctc_segmentation, editdistance' 2>/dev/null; then
        check_compilers
    fi
    log "installing espnet-fastformer[$extra]; the first time this brings PyTorch and" \
        "takes some minutes and 7 GB"
    "$python" -m pip install --disable-pip-version-check \
        --constraint "$root/tools/constraints.txt" --editable "$root[$extra]" >&2
    # Each extra holds those before it.
    for name in train recipe test; do
        echo "$state" >"$venv/.espnet-fastformer-$name"
        [ "$name" != "$extra" ] || break
    done
fi
echo "$python"
