#!/usr/bin/env bash
# Put SGLang 0.5.15.post1 beside the torch of a machine that reaches no package registry.
#
#   setup.sh add FOLDER    take the wheels in FOLDER (a wheel may be cut into NAME.cut1, NAME.cut2, ...), install the whole ones in the background
#   setup.sh finish        wait for them, join and install the cut ones, and import SGLang
#
# GPUOPS_LAB (default ~/gpuops-lab) is where everything goes; packages into $GPUOPS_LAB/site. On a machine with
# a registry, a Python that has sglang 0.5.15.post1 does instead of all this.
set -euo pipefail
lab=${GPUOPS_LAB:-$HOME/gpuops-lab}
mkdir -p "$lab/wheels"
exec 9>"$lab/install.lock"

# --prefix and not --target: several wheels share a folder, and --target would replace it with that of the last.
install() { python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --ignore-installed --no-warn-script-location --prefix "$lab/prefix" "$@"; }

batch() {
    flock 9
    [ -e "$1/done" ] || { install "$1"/*.whl && touch "$1/done"; }
    flock -u 9
}

case ${1:-} in
add)
    cp "$2"/*.cut* "$lab/wheels/" 2>/dev/null || true
    new=$(mktemp -d "$lab/wheels/batch-XXXX")
    if cp "$2"/*.whl "$new/" 2>/dev/null; then
        setsid bash "$0" batch "$new" >>"$lab/install.log" 2>&1 </dev/null 9>&- &
    else
        rmdir "$new"
    fi
    ;;
batch)
    batch "$2"
    ;;
finish)
    for each in "$lab"/wheels/batch-*; do batch "$each"; done
    for first in "$lab"/wheels/*.cut1; do
        [ -e "$first" ] || break
        whole=${first%.cut1}
        find "$lab/wheels" -maxdepth 1 -name "${whole##*/}.cut*" | sort -V | xargs cat >"$whole"
        install "$whole"
        rm "$whole"
    done
    ln -sfn "$(find "$lab/prefix" -type d \( -name site-packages -o -name dist-packages \) -print -quit)" "$lab/site"
    PYTHONPATH=$lab/site:$lab/site/nvidia_cutlass_dsl/python_packages python3 -c 'import importlib.metadata as m; print("sglang", m.version("sglang"))'
    ;;
*)
    echo "usage: setup.sh add FOLDER | setup.sh finish" >&2
    exit 2
    ;;
esac
