#!/usr/bin/env bash
# What to run first on a machine with a GPU, in pieces of at most ten minutes each.
#
#   benchmarks/gpu.sh tests|speed|tables     one piece each
#   benchmarks/gpu.sh pretrain               a piece of the run; once more goes on where it stood
#   benchmarks/gpu.sh all                    all four, in this order
#
# By variables: PYTHON, OUT (results and states), DATA (SentEval folder), CORPUS (folder of the text files, as in
# mini's card), PIECE (seconds of a piece), TOKENS, BATCH (tokens a step), MODEL (layers x width of the speed
# figures). On a processor, at toy size:
#   TOKENS=20000 BATCH=2048 MODEL=2x96 SPEED="--batch 16 --steps 2 --lines 200" PRETRAIN="--layers 1 --width 32 \
#     --vocab-size 2000 --positions 64" TRAIN="--epochs 0.01" CORPUS=... DATA=... OUT=/tmp/gpu benchmarks/gpu.sh all
set -euo pipefail

PYTHON=${PYTHON:-python}
OUT=${OUT:-gpu-results}
PIECE=${PIECE:-540}
TOKENS=${TOKENS:-1000000000}
BATCH=${BATCH:-65536}
MODEL=${MODEL:-12x768}
ROOT=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$OUT"
cd "$ROOT"

cuda_tests() {
  "$PYTHON" -m pytest tests -q -k cuda -rs | tee "$OUT/tests.txt"
}

speed() {
  # shellcheck disable=SC2086  # several words are meant
  timeout "$PIECE" "$PYTHON" benchmarks/device_speed.py --model "$MODEL" ${SPEED:-} | tee "$OUT/speed.md"
}

pretrain() {
  local corpus=${CORPUS:?folder of enwiki_mlm.txt and the others} resume=()
  if [ -f "$OUT/mini/config.json" ]; then
    echo "pretrain: done, $OUT/mini"
    return
  fi
  if [ -f "$OUT/mini/work/plan.json" ]; then resume=(--resume); fi
  # the state is saved every minute; what a piece loses at its end is less than that
  local code=0
  # shellcheck disable=SC2086
  timeout --signal=KILL "$PIECE" "$PYTHON" -m promptcli pretrain "$corpus"/enwiki_mlm.txt "$corpus"/enwiki_core.txt \
    --unrelated "$corpus"/enwiki_contrastive_250k.txt --unrelated "$corpus"/wordnet_examples.txt \
    --held-out "$corpus"/wikitext2_valid.txt --half --output "$OUT/mini" --tokens "$TOKENS" --batch-tokens "$BATCH" \
    --save-minutes 1 "${resume[@]}" ${PRETRAIN:-} || code=$?
  case $code in
    0) ;;
    124 | 137) echo "pretrain: this piece is over; run it once more to go on" ;;
    *) return "$code" ;;
  esac
}

tables() {
  local data=${DATA:?SentEval folder} corpus=${CORPUS:?} backbone=mini method
  if [ -f "$OUT/mini/config.json" ]; then backbone=$OUT/mini; fi
  for method in simcse promptbert dcpcse optiprompt; do
    [ -f "$OUT/train.$method.json" ] && continue # done in an earlier piece
    # shellcheck disable=SC2086
    PROMPTCLI_HOME="$OUT/home" timeout "$PIECE" "$PYTHON" -m promptcli train --method "$method" --backbone "$backbone" \
      --data "$corpus"/enwiki_contrastive_250k.txt --data-dir "$data" --on STS-B:dev --seeds 3 --epochs 0.24 \
      --eval-steps 47 --test STS12 --test STS13 --test STS14 --test STS-B --test SICK-R --force --json ${TRAIN:-} \
      >"$OUT/part.json"
    mv "$OUT/part.json" "$OUT/train.$method.json"
    echo "tables: $OUT/train.$method.json"
  done
}

case ${1:-} in
  tests) cuda_tests ;;
  speed) speed ;;
  pretrain) pretrain ;;
  tables) tables ;;
  all) cuda_tests && speed && pretrain && tables ;;
  *) sed -n '2,14s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
