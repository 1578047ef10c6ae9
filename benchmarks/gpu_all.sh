#!/usr/bin/env bash
# All that only a GPU can show, in parts of at most four minutes, the most valuable first:
#   benchmarks/gpu_all.sh OUT [PART ...]              every part, or those named; started again it goes on where it ended
#   MODEL=FOLDER  Qwen3-0.6B, for the curve           DATA=FOLDER  gsm8k_train.jsonl, gsm8k_test.jsonl; default shared/data
#   PYTHON=...    default python3                     PEER=...     an interpreter that has TRL; default PYTHON
#   CACHES=...    compiled kernels; default OUT/caches: carry it to the next machine, engines then start a minute sooner
#   SMALL=1       the same on a CPU with tiny models; parts that need a GPU say so and are skipped
# Rows are written when they are measured, to OUT/rows.jsonl, and as tables to OUT/rows.md. A row that is there is not measured
# again, a part that has ended (OUT/PART.done) not started again; a part that is cut off or fails does not stop the others.
# The first four parts, a quarter of an hour: a curve of 50 steps, and the step, sampling and update of both programs.
#   curve          train.py, 0.6B on GSM8K, in slots of 200 s          race-minirl, race-trl   64 x 8 x 512, uniform and long-tailed
#   limit          products and bandwidth that the GPU reaches         tests                   kernels against the models' own code
#   smoke-zero3    train.py under ZeRO-3 on one GPU                    race-*-corrected        both correct for the sampler
#   update-SIZE    the update alone, rows by technique                 scaling                 a step's cost against its sizes
# Packages outside the interpreter: put their folder on PYTHONPATH.
set -u
out=$(mkdir -p "${1:?folder for the results}" && cd "$1" && pwd)
shift
all="curve race-minirl race-trl curve limit tests smoke-zero3 update-0.6b update-4b update-1.7b update-0.6b-ways
race-minirl-corrected race-trl-corrected scaling"
parts=${*:-$all}
cd "$(dirname "$0")/.."
python=${PYTHON:-$(command -v python3)}
peer=${PEER:-$python}
small=${SMALL:+--small}
caches=${CACHES:-$out/caches}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export VLLM_CACHE_ROOT="$caches/vllm" TORCHINDUCTOR_CACHE_DIR="$caches/inductor" TRITON_CACHE_DIR="$caches/triton"
rows="$out/rows.jsonl"
workloads=plain
[ -z "$small" ] || workloads=8x8x16
[ -n "$small" ] || "$python" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "torch sees no GPU; SMALL=1 is for a CPU")' || exit 1
failed=0
# The part's commands get at most four minutes; what they have written stays.
run() {
    echo "== $part: $*"
    timeout --signal=INT --kill-after=20 "${LIMIT:-235}" "$@" >"$out/$part.txt" 2>"$out/$part.err"
    local code=$?
    tail -n 30 "$out/$part.txt"
    case $code in
    0) touch "$out/$part.done" ;;
    3 | 124 | 137) echo "$part is not finished (exit code $code): start it again" ;;
    *) echo "$part FAILED (exit code $code):" && tail -n 15 "$out/$part.err" && failed=1 ;;
    esac
}
skip() { echo "== $part: skipped: $1"; }
on_a_gpu() { # only there
    if [ -n "$small" ]; then skip "needs a GPU"; else run "$@"; fi
}
has() { "$1" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$2') is None)"; }
race() { # PROGRAM WORKLOADS
    local interpreter=$python package=vllm sizes=()
    [ "$1" = trl ] && interpreter=$peer package=trl
    # On a CPU vLLM samples for us and transformers for TRL: it shows that the scripts work, and compares nothing.
    [ -n "$small" ] && sizes=(--engine vllm --steps 1) && [ "$1" = minirl ] && package=vllm
    has "$interpreter" "$package" || { skip "$interpreter has no $package"; return; }
    run "$python" benchmarks/race_trl.py --program "$1" --only "$2" --rows "$rows" --peer-python "$peer" --steps 3 "${sizes[@]}"
}
update() { # SHAPE LONGEST BUDGET [OPTION ...]
    local shape=$1 longest=$2 budget=$3
    shift 3
    [ -n "$small" ] && { run "$python" -m benchmarks.update --shapes 1m --lengths 16 --budgets 2048 --tokens 512 --hows packed --rows "$rows"; return; }
    run "$python" -m benchmarks.update --shapes "$shape" --lengths "$longest" --budgets "$budget" --tokens 65536 --rows "$rows" "$@"
}
for part in $parts; do
    [ -e "$out/$part.done" ] && { skip "done before"; continue; }
    case $part in
    curve)
        if [ -z "$small" ] && [ -z "${MODEL:-}" ]; then
            skip "MODEL names no folder of Qwen3-0.6B"
        else
            run "$python" -m benchmarks.gpu_curve --rows "$rows" --run-dir "$out/curve" --stop-after 200s \
                --model "${MODEL:-}" --data "${DATA:-shared/data}" $small
        fi ;;
    race-minirl) race minirl "$workloads" ;;
    race-trl) race trl "$workloads" ;;
    race-minirl-corrected) if [ -n "$small" ]; then skip "needs a GPU"; else race minirl corrected; fi ;;
    race-trl-corrected) if [ -n "$small" ]; then skip "needs a GPU"; else race trl corrected; fi ;;
    limit) run "$python" -m benchmarks.limit --hardware --rows "$rows" ;;
    tests)
        # Needs pytest and hypothesis, of minirl[test].
        on_a_gpu "$python" -m pytest -q -o addopts= tests/policy/test_logprobs.py tests/policy/test_model.py \
            -k "gpu or fused or compiled_layers" ;;
    smoke-zero3) on_a_gpu "$python" benchmarks/gpu_smoke.py --only zero3 --out "$out/smoke" --rows "$rows" ;;
    update-0.6b) update 0.6b 512 16384 --hows packed recompute "layers compiled" ;;
    update-1.7b) update 1.7b 2048 16384 --hows packed recompute ;;
    update-4b) update 4b 4096 8192 --hows packed recompute ;; # 16,384 tokens without recomputation do not fit
    update-0.6b-ways) update 0.6b 512 16384 --shardings plain ;;
    scaling)
        if [ -n "$small" ]; then skip "takes as long on a CPU"; else run "$python" -m benchmarks.scaling --rows "$rows"; fi ;;
    *) echo "no part is called $part: $all" && exit 2 ;;
    esac
done
[ -e "$rows" ] && "$python" benchmarks/race_trl.py --compare "$rows"
exit $failed
