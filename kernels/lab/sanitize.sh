#!/usr/bin/env bash
# compute-sanitizer over a few tests of each kernel family on this machine's card: memcheck and racecheck, all at the same time. Prints one line a
# run; exit status 0 when every run was clean, 1 when one was not, 2 when the tool or the card is missing.
#
#   sanitize.sh [SECONDS]      at most so long a run (default 90); a run that does not end in time is told, and counts as not clean
set -uo pipefail
seconds=${1:-90}
cd "$(dirname "$0")/.."
tool=$(command -v compute-sanitizer || find /usr/local/cuda*/bin /usr/local/cuda*/compute-sanitizer -name compute-sanitizer 2>/dev/null | head -1)
[ -n "$tool" ] || { echo "sanitize: no compute-sanitizer here; it comes with the CUDA toolkit" >&2; exit 2; }
nvidia-smi -L >/dev/null 2>&1 || { echo "sanitize: no card here" >&2; exit 2; }
logs=$(mktemp -d)

# Only our kernels: torch's, with which the tests make inputs and references, are another project's.
filter=(--kernel-name-exclude "kernel_substring=at::")
"$tool" "${filter[@]}" true >/dev/null 2>&1 || filter=()

# torch keeps freed memory, in which the tool could not tell a stray access from a good one.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1

# Small ones, since every access is instrumented. No graphs, and nothing that torch.compile makes.
tests() {
    case $1 in
    mla_decode)
        printf '%s\n' 'test_compressed_and_sliding_window_tokens_agree_with_the_reference[5-8]' \
            'test_compressed_and_sliding_window_tokens_agree_with_the_reference[1-64]' 'test_without_lengths_and_sink_everything_counts'
        ;;
    indexer)
        printf '%s\n' 'test_logits_agree_with_float64_and_nothing_else_is_written[48-page borders]' \
            'test_logits_agree_with_float64_and_nothing_else_is_written[0-padded rows among others]'
        ;;
    mhc)
        printf '%s\n' 'test_the_linear_is_that_of_the_fp32_weight[3]' 'test_pre_and_the_boundary_agree_with_float64[True-3]'
        ;;
    glue)
        printf '%s\n' 'test_activations_are_quantised_with_their_producer[True-3]' 'test_kv_rows_are_stored[True-64-3]' \
            'test_streams_are_updated_and_combined[3]'
        ;;
    esac | sed "s|^|tests/gpu/test_$1.py::|"
}

run() {
    local check=$1 family=$2 log=$logs/$1-$2.log chosen begin=$SECONDS status summary ended
    mapfile -t chosen < <(tests "$family")
    timeout -k 5 "$seconds" "$tool" --tool "$check" --error-exitcode 86 "${filter[@]}" \
        python3 -m pytest -q -x -p no:cacheprovider "${chosen[@]}" >"$log" 2>&1
    status=$?
    summary=$(grep -E "ERROR SUMMARY|RACECHECK SUMMARY" "$log" | tail -1 | sed 's/^=* *//')
    ended=$(grep -E "[0-9]+ (passed|failed|error)" "$log" | tail -1 | tr -d '=')
    echo "$check $family: exit $status, ${summary:-no summary}; ${ended:-no tests ended} ($((SECONDS - begin)) s)"
    [ "$status" -eq 0 ] || grep -m4 -E "Invalid|hazard|Error:|Error " "$log" | cut -c1-200 | sed 's/^/    /'
    [ "$status" -eq 0 ]
}

started=()
for check in memcheck racecheck; do
    for family in mla_decode indexer mhc glue; do
        run "$check" "$family" &
        started+=($!)
    done
done
clean=0
for each in "${started[@]}"; do wait "$each" || clean=1; done
echo "logs: $logs"
exit $clean
