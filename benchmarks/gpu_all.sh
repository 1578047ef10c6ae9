#!/usr/bin/env bash
# All that only a GPU can show, one after another: benchmarks/gpu_all.sh OUT [PYTHON WITH TRL]
# Tests of the packed attention's kernel, the smoke run, the race against TRL, the update alone, scaling. About two hours on one
# H200. Tables are printed and kept in OUT/*.txt, JSON lines in OUT/results.jsonl; a part that fails does not stop the others.
set -u
out=${1:?folder for the results}
peer=${2:-python}
mkdir -p "$out"
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD"
failed=0
part() {
    local name=$1
    shift
    echo "== $name: $*"
    "$@" 2>"$out/$name.err" | tee "$out/$name.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || { echo "$name FAILED, see $out/$name.err"; failed=1; }
}
part tests python -m pytest -q tests/test_scoring.py -k gpu
part smoke python benchmarks/gpu_smoke.py --out "$out/smoke"
part race python benchmarks/race_trl.py --results "$out/results.jsonl" --peer-python "$peer"
part update python -m benchmarks.update --results "$out/results.jsonl"
part scaling python -m benchmarks.scaling --results "$out/results.jsonl"
exit $failed
