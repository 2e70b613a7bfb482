#!/usr/bin/env bash
# Carry what JIT compilers have made from one machine to the next: a first start of an engine spends minutes on it.
#
#   caches.sh save FOLDER    pack the caches of this home folder into FOLDER/caches.NN, pieces of 15 MiB, at most 7
#   caches.sh load FOLDER    put them back
#
# Objects and logs of builds are left out: what is loaded are the libraries and cubins. Same Python, torch, triton, engine and paths on both sides;
# a cache that does not fit is ignored by whoever made it. More than 7 pieces are an error, and the sizes are printed.
set -euo pipefail
pieces=7
piece_bytes=$((15 << 20))
folders=(.triton .tilelang .deep_gemm .cache/flashinfer .cache/tvm-ffi .cache/deep_gemm .cache/tilelang .cache/sglang .cache/torch_extensions)

case ${1:-} in
save)
    mkdir -p "$2"
    cd "$HOME"
    found=()
    for each in "${folders[@]}"; do [ ! -d "$each" ] || found+=("$each"); done
    [ ${#found[@]} -gt 0 ] || { echo "caches: there is none of ${folders[*]} in $HOME" >&2; exit 1; }
    du -sm "${found[@]}"
    rm -f "$2"/caches.*
    tar cf - --exclude='*.o' --exclude='*.log' --exclude='*.ptx.tmp*' --exclude='.ninja*' "${found[@]}" |
        if command -v zstd >/dev/null; then zstd -q -T0 -9; elif command -v xz >/dev/null; then xz -T0 -1; else gzip -1; fi |
        split -b "$piece_bytes" -d -a 2 - "$2/caches."
    count=$(find "$2" -name 'caches.*' | wc -l)
    echo "caches: $count pieces, $(du -cm "$2"/caches.* | tail -1 | cut -f1) MiB"
    [ "$count" -le "$pieces" ] || { echo "caches: more than $pieces pieces" >&2; exit 1; }
    ;;
load)
    first=$(od -An -tx1 -N4 "$2/caches.00" | tr -d ' \n')
    case $first in 28b52ffd) unpack=(zstd -dq) ;; fd377a58) unpack=(xz -d) ;; *) unpack=(gzip -d) ;; esac
    cat "$2"/caches.* | "${unpack[@]}" | tar xf - -C "$HOME"
    ;;
*)
    echo "usage: caches.sh save FOLDER | caches.sh load FOLDER" >&2
    exit 2
    ;;
esac
