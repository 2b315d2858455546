#!/usr/bin/env bash
# What only a GPU can show: the demo, the tests that need one, and compute-sanitizer over products of every kernel.
#   tests/run_on_gpu.sh [FOLDER FOR LOGS]
# Needs the installed package with its test extra, CuPy, pytest-xdist and CUDA's compute-sanitizer.
set -uo pipefail
tests=$(cd "$(dirname "$0")" && pwd)
logs=${1:-$(mktemp -d)}
cd "$tests"
failed=0

step() {
    local name=$1 limit=$2
    shift 2
    printf '\n==== %s\n' "$name"
    local began=$SECONDS
    timeout "$limit" "$@" >"$logs/$name.log" 2>&1
    local status=$?
    tail -n 25 "$logs/$name.log"
    printf -- '---- %s: exit status %d, %d s\n' "$name" "$status" $((SECONDS - began))
    [ "$status" = 0 ] || failed=1
}

step demo 60 python3 -m pyblas_sgemm
# Tests that fill the GPU's memory or count it have it to themselves.
step suite 400 python3 -m pytest -q -p no:cacheprovider -m gpu -n 6 .
step alone 240 python3 -m pytest -q -p no:cacheprovider -m gpu -k "memory or full or workspace or elements" \
    test_batch_invariant.py test_cases.py test_graphs.py test_handle.py test_host_arrays.py
# The public cases once more in the other modes, and those of host arrays by way of the GPU.
for mode in fp32_pedantic tf32; do
    step "cases-$mode" 120 env PYBLAS_SGEMM_COMPUTE=$mode python3 -m pytest -q -p no:cacheprovider -m "not large" -k gpu -n 6 test_cases.py
done
step cases-host 240 env PYBLAS_SGEMM_DEVICE=cuda python3 -m pytest -q -p no:cacheprovider -m "not gpu and not large" -k "not gpu" -n 6 \
    test_cases.py test_matmul.py
# Another search each time for input that breaks the bound of split products; what it prints belongs to data/.
step adversary 90 python3 adversary.py --gpu --seconds 40 --seed $RANDOM
for tool in memcheck racecheck synccheck initcheck; do
    step "$tool" 180 compute-sanitizer --tool "$tool" --error-exitcode 1 --launch-timeout 60 python3 sanitized.py
done
exit $failed
