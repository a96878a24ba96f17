#!/usr/bin/env bash
# Runs ESPnet's own recipe egs2/mini_an4/asr1, as it is, with our encoders: data, BPE,
# statistics, training, decoding, scoring and packing, on CPUs and offline but for
# ESPnet's sources.
#
# Usage: tests/integration/egs2_mini_an4.sh [DIRECTORY]
#
# Works in DIRECTORY and leaves it, or in a temporary one that is removed at the end.
#
# PYTHON         of the environment that has espnet[asr] and this package
#                (default: python3)
# ESPNET_SOURCE  a clone or unpacked source distribution of ESPnet, which is only read
#                (default: the source distribution of the installed ESPnet, downloaded)
#
# Exit status: 77 if this machine cannot run the recipe, which is then explained.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
conf=$(cd "$here/../../conf" && pwd)
python=$("${PYTHON:-python3}" -c "import sys; print(sys.executable)")

cannot_run() {
    echo "$(basename "$0"): $*" >&2
    exit 77
}

command -v perl >/dev/null || cannot_run "the recipe needs perl"

if [ $# -gt 0 ]; then
    mkdir -p "$1"
    work=$(cd "$1" && pwd)
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi

source=${ESPNET_SOURCE:-}
if [ -z "$source" ]; then
    version=$("$python" -c 'from importlib.metadata import version; print(version("espnet"))')
    echo "downloading the source distribution of espnet $version"
    "$python" -m pip --disable-pip-version-check download --quiet --no-deps \
        --no-build-isolation --no-binary espnet --dest "$work" "espnet==$version" ||
        cannot_run "no source distribution of espnet $version to be had: without" \
            "network, set ESPNET_SOURCE"
    source=$work/espnet-$version
    tar -C "$work" --no-same-owner -xzf "$source.tar.gz" \
        "espnet-$version"/{egs2/TEMPLATE/asr1,egs2/mini_an4/asr1,tools}
    rm "$source.tar.gz"
fi
if ! [ -d "$source/egs2/mini_an4/asr1" ]; then
    echo "$(basename "$0"): no egs2/mini_an4/asr1 in ESPNET_SOURCE=$source" >&2
    exit 2
fi

# A tree of its own: the sources may be someone's clone.
espnet=$work/espnet
recipe=$espnet/egs2/mini_an4/asr1
rm -rf "$espnet"
mkdir -p "$espnet/tools"
for path in egs2/TEMPLATE/asr1 egs2/mini_an4/asr1; do
    mkdir -p "$espnet/$path"
    tar -C "$source/$path" --exclude=./data --exclude=./downloads --exclude=./dump \
        --exclude=./exp -cf - . | tar -C "$espnet/$path" -xf -
done
cp -R "$source"/tools/{extra_path.sh,sentencepiece_commands} "$espnet/tools"
# Source distributions hold no links.
for link in scripts pyscripts steps utils; do
    [ -e "$recipe/$link" ] || ln -s "../../TEMPLATE/asr1/$link" "$recipe/$link"
done

# What ESPnet's installers build in tools/, as far as the machine has none of its own.
for path in sph2pipe/sph2pipe sctk/bin/sclite; do
    program=$(basename $path)
    command -v $program >/dev/null && continue
    mkdir -p "$espnet/tools/$(dirname $path)"
    printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' \
        "$python" "$here/espnet_tools/$program.py" >"$espnet/tools/$path"
    chmod +x "$espnet/tools/$path"
done
mkdir "$espnet/tools/python"
"$python" -c 'import warprnnt_pytorch' 2>/dev/null ||
    cp "$here/espnet_tools/warprnnt_pytorch.py" "$espnet/tools/python"
cat >"$espnet/tools/activate_python.sh" <<END
export PATH="$(dirname "$python")":\$PATH
export PYTHONPATH="$espnet/tools/python":\${PYTHONPATH:-}
END

# One test set and one process, because a process takes longer to start than to decode.
run() {
    (cd "$recipe" && ./run.sh --ngpu 0 --use_lm false --skip_packing false \
        --test_sets test --inference_nj 1 --stop_stage 14 "$@")
}

# The first one prepares the data of all.
run --asr_exp exp/fastformer --asr_config "$conf/train_asr_fastformer_small.yaml" \
    --asr_args "--max_epoch 1"
run --asr_exp exp/transducer --asr_config "$conf/train_asr_transducer_aft.yaml" \
    --asr_args "--max_epoch 1 --accum_grad 1 \
        --encoder_conf output_size=64 --encoder_conf num_blocks=2 \
        --model_conf transducer_multi_blank_durations=[]" \
    --inference_config "$conf/decode_transducer.yaml" \
    --inference_args "--beam_size 2" --inference_asr_model valid.loss.ave.pth \
    --stage 11
run --asr_exp exp/streaming --asr_config "$conf/train_asr_streaming_aft_small.yaml" \
    --asr_args "--max_epoch 1" --use_streaming true \
    --inference_config "$conf/decode_asr_streaming.yaml" \
    --inference_args "--beam_size 2 --sim_chunk_length 8000" --stage 11

cd "$recipe"
. ./path.sh
for model in fastformer transducer streaming; do
    [ -s exp/$model/RESULTS.md ]
done
python3 - <<'END'
from pathlib import Path

import soundfile
from espnet2.bin.asr_inference import Speech2Text
from espnet2.main_funcs.pack_funcs import unpack

from espnet_fastformer import AFTEncoder, FastformerEncoder

(audio, *_) = Path("dump/raw/test/data").glob("**/*.flac")
speech, _ = soundfile.read(audio)
for name, encoder in {
    "fastformer": FastformerEncoder,
    "transducer": AFTEncoder,
    "streaming": AFTEncoder,
}.items():
    (package,) = Path("exp", name).glob("*.zip")
    files = unpack(package, f"unpacked/{name}")
    model = Speech2Text(
        files["asr_train_config"], files["asr_model_file"], beam_size=2, maxlenratio=0.1
    )
    assert type(model.asr_model.encoder) is encoder, type(model.asr_model.encoder)
    (text, *_), *_ = model(speech)
    print(f"{package.name} recognizes {text!r}")
END
