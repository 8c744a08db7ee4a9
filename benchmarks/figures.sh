#!/usr/bin/env bash
# Every figure of the docs that stands on the shipped backbone, as jobs of one thread each; a finished one is left alone,
# an interrupted one goes on.
#
#   benchmarks/figures.sh list                                          the jobs, one a line
#   benchmarks/figures.sh train:simcse:0 tables:promptbert              these
#   benchmarks/figures.sh list | xargs -n 1 -P 2 benchmarks/figures.sh  all of them, two at a time
#
# By variables: PYTHON; OUT (a file a job, and the models); DATA (SentEval folder); CORPUS, NLI, GLOSSES and PUD (folder of
# the Wikipedia files named in mini-bert's card; nli_triplets.csv and nli_pairs.tsv; common_words.tsv; sentences.txt); for
# kinds and distill: PAIRS, the folder of the files of pairs named below; for distill: TEXTS, the folder of
# distillation_corpus.py, and TEACHER, a model; for mini, long-* and those of two teachers, also SECOND, another
# model.
set -euo pipefail

PYTHON=${PYTHON:-python}
OUT=${OUT:-figures}
ROOT=$(cd "$(dirname "$0")/.." && pwd)
TESTS="STS12 STS13 STS14 STS-B SICK-R"
TEMPLATE='This sentence : "[X]" means [MASK] .'
STUDENTS="mini mini-static vectors layer-1 layer-2 similarities vectors-alone first-10000 first-40000 average long-one long-two-1 long-average static-mini second-teacher two-teachers two-teachers-2 pairs-teacher pairs-both pairs"
KINDS="captions questions nli headlines simplify twitter tatoeba"
SYSTEMS="defsent consert-joint consert consert-after-joint isbert cotbert sbert sbert-regression"

jobs_in_order() {
  echo rows models search:free tables:promptbert tables:ditto tables:dcpcse | tr ' ' '\n'
  for seed in 0 1 2; do
    for method in simcse promptbert dcpcse dcpcse-750k simcse-supervised; do echo "train:$method:$seed"; done
  done
  echo train:dcpcse-4:0 train:simcse-250k:0 train:dcpcse-250k:0 train:dcpcse-250k:1 train:dcpcse-1m:0 train:dcpcse-1m:1 | tr ' ' '\n'
  echo train:dcpcse-supervised:0 train:dcpcse-supervised-10:0 train:promptbert-supervised:0 train:optiprompt:0 | tr ' ' '\n'
  for system in $SYSTEMS; do echo "train:$system:0"; done
  echo kinds:all kinds:nli kinds:free | tr ' ' '\n'
  for kind in $KINDS; do echo "kinds:without-$kind"; done
  for student in $STUDENTS; do echo "distill:$student"; done
  echo bare search:greedy stores mteb transforms | tr ' ' '\n'
}

promptcli() { "$PYTHON" -m promptcli "$@"; }

tests() { for test in $TESTS; do printf -- '%s %s ' "$1" "$test"; done; }

# files KIND; free: what mini is trained on, captions, NLI and translations whose terms are attribution or share-alike
files() {
  case $1 in
    captions) echo captions_flickr30k.tsv captions_coco.tsv captions_audio.tsv ;;
    questions) echo questions_quora.tsv questions_triplets.tsv ;;
    nli) echo nli_triplets.tsv nli_entail.tsv nli_neutral_triplets.tsv nli_crowd_triplets.csv ;;
    twitter) echo twitter_url.tsv twitter_triplets.tsv ;;
    free) files nli && echo captions_coco.tsv tatoeba.tsv ;;
    all) for kind in $KINDS; do files "$kind"; done ;;
    without-*) for kind in $KINDS; do if [ "$kind" != "${1#without-}" ]; then files "$kind"; fi; done ;;
    *) echo "$1.tsv" ;;
  esac
}

# settings METHOD: what `promptcli train` is given, data and steps first, as in benchmarks/log.md
settings() {
  local wiki="--data $CORPUS/enwiki_contrastive_250k.txt" triplets="--data $NLI/nli_triplets.csv"
  local pairs="--data $NLI/nli_pairs.tsv" file kinds=""
  case $1 in
    simcse | promptbert | dcpcse | optiprompt) echo "--method $1 $wiki --epochs 0.24 --set eval-steps=47" ;;
    dcpcse-4) echo "--method dcpcse --set prefix-length=4 $wiki --epochs 0.24 --set eval-steps=47" ;;
    simcse-250k | dcpcse-250k) echo "--method ${1%-250k} $wiki --epochs 1 --set eval-steps=125" ;;
    dcpcse-750k) echo "--method dcpcse $wiki --epochs 3 --set eval-steps=125" ;;
    dcpcse-1m) echo "--method dcpcse $wiki --epochs 4 --set eval-steps=125" ;;
    simcse-supervised | promptbert-supervised | dcpcse-supervised)
      echo "--method ${1%-supervised} $triplets --epochs 1 --set eval-steps=24" ;;
    dcpcse-supervised-10) echo "--method dcpcse $triplets --epochs 10 --set eval-steps=125" ;;
    defsent) echo "--method defsent --data $GLOSSES/common_words.tsv --set eval-steps=93" ;;
    consert-joint) echo "--method consert $pairs --epochs 0.0968 --set eval-steps=28" ;;
    consert) echo "--method consert $wiki --epochs 0.0822 --set eval-steps=54" ;;
    consert-after-joint) echo "--method consert --from consert-joint-0 $wiki --epochs 0.0128 --set eval-steps=11" ;;
    isbert) echo "--method isbert $wiki --epochs 0.032 --set eval-steps=50" ;;
    cotbert) echo "--method cotbert $wiki --epochs 0.0819 --set eval-steps=40" ;;
    sbert) echo "--method sbert $pairs --epochs 0.1162 --set eval-steps=75" ;;
    sbert-regression) echo "--method sbert-regression --data STS-B:train --epochs 2 --set eval-steps=90" ;;
    kinds-*)
      for file in $(files "${1#kinds-}"); do kinds+=" --data $PAIRS/$file"; done
      echo "--method promptbert$kinds --set data-temperature=2 --max-length 40 --set keep-head=false --steps 120" \
        "--set eval-steps=40 --test demo" ;;
    *) return 2 ;;
  esac
}

train() {
  local name=$1-$2 resume=--force
  if [ -d "$OUT/home/runs/$name" ]; then resume=--resume; fi
  # shellcheck disable=SC2046  # several words are meant
  promptcli train $(settings "$1") --data-dir "$DATA" --on STS-B:dev --seed "$2" $(tests --test) --name "$name" $resume --json
}

# vectors SENTENCES MODEL FILE: made once
vectors() {
  if [ ! -s "$3" ]; then promptcli embed "$1" -m "$2" --precision float16 -o "$3" --force; fi
}

# distill STUDENT: mini and mini-static as shipped; long-* and static-mini with other teachers at full length; the others, of
# 600 steps, are what each ingredient is worth
distill() {
  local corpus="$OUT/distill" data teacher set="--steps 600 --set eval-steps=100" pairs="" file count wikipedia=200000
  local -a prompt=(--prompt "$TEMPLATE")
  case $1 in mini | long-*) corpus+="-large" wikipedia=1000000 ;; esac # all that there are
  if [ ! -s "$corpus.npy" ]; then
    "$PYTHON" benchmarks/distillation_corpus.py --data "$TEXTS" --wikipedia "$wikipedia" -o "$corpus.txt"
  fi
  vectors "$corpus.txt" "$TEACHER" "$corpus.npy"
  for file in $(files free); do case $file in *crowd*) ;; *) pairs+=" --data $PAIRS/$file" ;; esac; done
  data="--data $corpus.txt" teacher="--set teacher=$corpus.npy"
  case $1 in
    mini | long-*) set="--batch-size 512 --learning-rate 1e-3 --steps 5700 --set eval-steps=500" ;;&
    mini | long-two-1 | long-average)
      vectors "$corpus.txt" "${SECOND:?}" "$corpus.SECOND.npy"
      teacher+=" --set second-teacher=$corpus.SECOND.npy" ;;&
    long-two-1) set+=" --set second-weight=0.3333" ;;
    mini)
      if [ ! -s "$OUT/mini-first.json" ]; then
        # shellcheck disable=SC2086
        promptcli train distill $data $teacher $set "${prompt[@]}" --data-dir "$DATA" --on STS-B:dev --test demo:dev \
          --name distill-mini-first --force --json >"$OUT/mini-first.part"
        mv "$OUT/mini-first.part" "$OUT/mini-first.json"
      fi
      set="--from distill-mini-first --batch-size 512 --learning-rate 4e-4 --steps 1500 --set eval-steps=250" ;;
    static-mini)
      vectors "$corpus.txt" mini "$corpus.mini.npy"
      teacher="--set teacher=$corpus.mini.npy" ;;&
    *static* | *average) prompt=() ;;&
    *static*) set="--set pool=static/avg --batch-size 512 --learning-rate 0.01 --epochs 2 --set weight-decay=0 --set eval-steps=150" ;;
    layer-*) set+=" --set pool=$1/mask" ;;
    similarities) set+=" --set target=similarities" ;;
    vectors-alone) set+=" --set similarity-weight=0" ;;
    first-*)
      count=${1#first-}
      head -n "$count" "$corpus.txt" >"$corpus.$count.txt"
      data="--data $corpus.$count.txt"
      vectors "$corpus.$count.txt" "$TEACHER" "$corpus.$count.npy"
      teacher="--set teacher=$corpus.$count.npy" ;;
    second-teacher | two-teachers*)
      count=77753
      head -n "$count" "$corpus.txt" >"$corpus.$count.txt"
      data="--data $corpus.$count.txt"
      vectors "$corpus.$count.txt" "$TEACHER" "$corpus.TEACHER.npy"
      vectors "$corpus.$count.txt" "${SECOND:?}" "$corpus.SECOND.npy"
      teacher="--set teacher=$corpus.TEACHER.npy" ;;&
    second-teacher) teacher="--set teacher=$corpus.SECOND.npy" ;;
    two-teachers*) teacher+=" --set second-teacher=$corpus.SECOND.npy" ;;&
    two-teachers-2) teacher+=" --set second-weight=0.6667" ;;
    pairs-teacher | pairs-both) data="$pairs --set data-temperature=2" teacher="--set teacher=$TEACHER" ;;&
    pairs-both) set+=" --set contrastive-weight=0.2" ;;
    pairs)
      # shellcheck disable=SC2086
      promptcli train promptbert $pairs --set data-temperature=2 --learning-rate 3e-4 --max-length 40 --set keep-head=false $set \
        --data-dir "$DATA" --on STS-B:dev $(tests --test) --test demo --name "distill-$1" --force --json
      return ;;
  esac
  # shellcheck disable=SC2086,SC2046
  promptcli train distill $data $teacher $set "${prompt[@]}" --data-dir "$DATA" --on STS-B:dev $(tests --test) --test demo \
    --name "distill-$1" --force --json
}

tables() {
  mkdir -p "$OUT/corpora.$1"
  head -n 6400 "$CORPUS/enwiki_contrastive_250k.txt" >"$OUT/corpora.$1/enwiki_6400.txt"
  head -n 3201 "$NLI/nli_triplets.csv" >"$OUT/corpora.$1/nli_3200.csv"
  local given=(--data-dir "$DATA" --output "$OUT/results")
  local trained=(--train --corpus "$OUT/corpora.$1/enwiki_6400.txt" --triplets "$OUT/corpora.$1/nli_3200.csv") table
  for table in $(promptcli reproduce list --json | "$PYTHON" -c "
import json, sys
for row in json.load(sys.stdin)['tables']:
    if row['table'].startswith('$1/'): print(row['table'])"); do
    case $table in
      promptbert/10) promptcli reproduce "$table" "${given[@]}" "${trained[@]}" --seeds 3 ;;
      ditto/3) promptcli reproduce "$table" "${given[@]}" --corpus "$PUD/sentences.txt" ;;
      *figure-1 | ditto/figure-* | ditto/2 | ditto/4 | ditto/5 | promptbert/1 | promptbert/12 | promptbert/figure-2)
        promptcli reproduce "$table" "${given[@]}" ;;
      *) promptcli reproduce "$table" "${given[@]}" "${trained[@]}" ;;
    esac
  done
}

stores() {
  promptcli eval --task STS-B:dev --data-dir "$DATA" --list-sentences >"$OUT/sentences.txt"
  for precision in float32 float16 int8 binary; do
    promptcli embed "$OUT/sentences.txt" --dtype float32 --precision "$precision" -o "$OUT/$precision.npy" --force
    promptcli eval --task STS-B:dev --data-dir "$DATA" --vectors "$OUT/$precision.npy" --json
  done
}

job() {
  case $1 in
    rows) promptcli eval --data-dir "$DATA" --task STS-B:dev $(tests --task) --json ;;
    models) promptcli eval --data-dir "$DATA" --task demo --task STS-B:dev $(tests --task) -m mini -m mini-static --json ;;
    search:*)
      promptcli search-templates --mode "${1#*:}" --on STS-B:dev --data-dir "$DATA" --name "found-${1#*:}" --force --json
      promptcli eval -m "found-${1#*:}" --data-dir "$DATA" --task STS-B:dev $(tests --task) --json ;;
    tables:*) tables "${1#*:}" ;;
    kinds:*) : "${PAIRS:?folder of the pairs}" && train "kinds-${1#*:}" 0 ;;
    distill:*) : "${PAIRS:?}" "${TEXTS:?}" "${TEACHER:?}" && distill "${1#distill:}" ;;
    train:*) train "$(cut -d: -f2 <<<"$1")" "${1##*:}" ;;
    bare) promptcli tune dcpcse --seeds 3 --force --json ;;
    stores) stores ;;
    mteb)
      promptcli eval --task mteb:STS12 --task mteb:STSBenchmark --task mteb:SICK-R --model last-avg --model first-last-ditto \
        --data-dir "$DATA" -o "$OUT/mteb" --json ;;
    transforms)
      head -n 6000 "$CORPUS/enwiki_contrastive_250k.txt" >"$OUT/wiki.txt"
      awk 'NR%27==1' "$NLI/nli_pairs.tsv" >"$OUT/nli.tsv"
      "$PYTHON" benchmarks/transforms.py --data-dir "$DATA" --corpora "$OUT/wiki.txt,$OUT/nli.tsv" \
        --recipes static-avg,last-avg,first-last-avg,cls,static-unbiased,first-last-ditto,prompt,prompt-denoised ;;
    *) echo "no job $1; \`benchmarks/figures.sh list\` names them" >&2 && return 2 ;;
  esac
}

case ${1:-} in
  '') sed -n '2,13s/^# \{0,1\}//p' "$0" && exit 2 ;;
  list) jobs_in_order && exit ;;
esac
: "${DATA:?SentEval folder}" "${CORPUS:?folder of the Wikipedia files}" "${NLI:?}" "${GLOSSES:?}" "${PUD:?}"
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
cd "$ROOT"
export PROMPTCLI_HOME=$OUT/home OMP_NUM_THREADS=1
for name in "$@"; do
  kept=$OUT/${name//:/.}.json
  if [ -f "$kept" ]; then continue; fi
  job "$name" >"$kept.part"
  mv "$kept.part" "$kept"
done
