#!/usr/bin/env bash
# All that only a GPU can show, one after another: benchmarks/gpu_all.sh OUT [PYTHON WITH TRL [PART ...]]
# Parts, all unless named: tests (kernels against the models' own code), smoke, race-uniform, race-tail and both -corrected
# (against TRL, without and with the correction for the sampler), update-0.6b, -1.7b and -4b (the update alone at 16k tokens, with
# the techniques one by one), scaling. A part is meant to fit ten minutes (guessed; a race: seven steps of 25 to 28 s of TRL's, of
# 11 to 13 of ours, 90 s for each program to start). Only when named: update, the whole table, some two hours.
# Tables are printed and kept in OUT/*.txt, JSON lines in OUT/results.jsonl; a part that fails does not stop the others. Packages
# outside the interpreter: put their folder on PYTHONPATH.
set -u
out=$(mkdir -p "${1:?folder for the results}" && cd "$1" && pwd)
peer=${2:-python}
shift $(($# < 2 ? $# : 2))
parts=${*:-tests smoke race-uniform race-uniform-corrected race-tail race-tail-corrected update-0.6b update-1.7b update-4b scaling}
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "torch sees no GPU")' || exit 1
failed=0
part() {
    local name=$1
    shift
    [[ " $parts " == *" $name "* ]] || return
    echo "== $name: $*"
    "$@" 2>"$out/$name.err" | tee "$out/$name.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || { echo "$name FAILED, see $out/$name.err"; failed=1; }
}
race() {
    part "$1" python benchmarks/race_trl.py --only "$2" --results "$out/results.jsonl" --peer-python "$peer"
}
# Needs pytest and hypothesis, of minirl[test].
part tests python -m pytest -q -o addopts= tests/test_scoring.py tests/test_model.py -k "gpu or fused or compiled_layers"
part smoke python benchmarks/gpu_smoke.py --out "$out/smoke"
race race-uniform "uniform plain"
race race-uniform-corrected "uniform corrected"
race race-tail "tail plain"
race race-tail-corrected "tail corrected"
for size in "0.6b 512" "1.7b 2048" "4b 4096"; do
    part "update-${size% *}" python -m benchmarks.update --shapes "${size% *}" --lengths "${size#* }" --budgets 16384 \
        --tokens 65536 --results "$out/results.jsonl"
done
part update python -m benchmarks.update --results "$out/results.jsonl"
part scaling python -m benchmarks.scaling --results "$out/results.jsonl"
exit $failed
