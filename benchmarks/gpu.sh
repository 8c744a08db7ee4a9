#!/usr/bin/env bash
# What to run on a machine with a GPU: ten minutes of it are enough, and every result is written as it comes.
#
#   benchmarks/gpu.sh wheels [NAME...]       where there is a network: into WHEELS what the machine lacks, as check says it
#   benchmarks/gpu.sh check                  what the machine has, what it lacks; nothing is changed
#   benchmarks/gpu.sh install                what it lacks from WHEELS into OUT/venv, without a network
#   benchmarks/gpu.sh tests|speed|compiled|host|pretrain|tables
#   benchmarks/gpu.sh first                  check, install, compiled, host: what to try first, with and without torch.compile
#   benchmarks/gpu.sh all                    check, install, tests, speed, host, pretrain, tables; a piece that fails stops no other
#
# Run again, pieces that are done are left out and runs go on where they stood. By variables: PYTHON, OUT (results and
# states), WHEELS, DATA (SentEval folder), CORPUS (folder of text files, a sentence a line), MODEL (layers x width),
# TOKENS, BATCH (tokens a step), METHODS, and the seconds of each piece: TESTS_S, SPEED_S, COMPILED_S, HOST_S, KILL_S, PRETRAIN_S,
# TABLE_S.
# On a processor, at toy size:
#   TOKENS=20000 BATCH=2048 MODEL=2x96 KILL_S=20 SPEED="--batch 16 --steps 2 --lines 200" HOST="--lines 2000 --examples 1280" TRAIN="--steps 2" PRETRAIN=\
#     "--layers 1 --width 32 --vocab-size 2000 --positions 64" CORPUS=... DATA=... OUT=/tmp/gpu benchmarks/gpu.sh all
set -uo pipefail

PYTHON=${PYTHON:-python3}
OUT=${OUT:-gpu-results}
WHEELS=${WHEELS:-wheels}
MODEL=${MODEL:-12x768}
TOKENS=${TOKENS:-300000000}
BATCH=${BATCH:-65536}
METHODS=${METHODS:-promptbert simcse}
export PYTORCH_ALLOC_CONF=expandable_segments:True # passes of training grow from step to step
ROOT=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
cd "$ROOT" || exit 1
export PYTHONPATH="$ROOT" PROMPTCLI_HOME="$OUT/home" HF_HUB_OFFLINE=1
# the tokenizer has all cores, also where a variable leaves torch fewer; what is compiled is kept
export TOKENIZERS_PARALLELISM=true RAYON_NUM_THREADS=${RAYON_NUM_THREADS:-$(nproc)} TORCHINDUCTOR_CACHE_DIR="$OUT/inductor"
[ -x "$OUT/venv/bin/python" ] && PYTHON=$OUT/venv/bin/python

lacking() { # requirements of pyproject.toml that this Python does not meet, one a line; with any argument: said in words
  "$PYTHON" - "$@" <<'PY'
import importlib.metadata, sys, tomllib
from packaging.requirements import Requirement
wanted = tomllib.load(open("pyproject.toml", "rb"))["project"]
extra = ["pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100", "psutil>=6", "peft>=0.18"]
for text in [*wanted["dependencies"], *extra]:
    need = Requirement(text)
    try:
        here = importlib.metadata.version(need.name)
    except importlib.metadata.PackageNotFoundError:
        here = None
    if here is None or not need.specifier.contains(here, prereleases=True):
        print(f"lacks {text} (here: {here or 'none'})" if len(sys.argv) > 1 else text)
PY
}

check() {
  "$PYTHON" - <<'PY' || return 1
import importlib.util, os, platform, shutil, sys
print(f"Python {platform.python_version()}" + ("" if sys.version_info >= (3, 11) else ": 3.11 or later is needed"))
try:
    import torch
except ImportError:
    sys.exit("lacks torch: it comes with the machine, not as a wheel")
print(f"torch {torch.__version__}, CUDA {torch.version.cuda}")
for number in range(torch.cuda.device_count()):
    about = torch.cuda.get_device_properties(number)
    print(f"cuda:{number} {about.name}, {about.total_memory / 2**30:.0f} GiB, {torch.cuda.mem_get_info(number)[0] / 2**30:.0f} free")
if not torch.cuda.is_available():
    print("no GPU that torch can use: everything runs on the processor")
compiler = os.environ.get("CXX", "g++")
if shutil.which(compiler) is None:
    print(f"no {compiler}: torch.compile does not work")
if torch.cuda.is_available() and importlib.util.find_spec("triton") is None:
    print("no triton: torch.compile does not work on the GPU")
threads = os.environ["RAYON_NUM_THREADS"]
print(f"{os.cpu_count()} cores, {threads} threads of the tokenizer, {torch.get_num_threads()} of torch")
PY
  lacking words
}

wheels() { # and what these require in turn, but torch, which comes with the machine
  mkdir -p "$WHEELS"
  local names=("$@")
  [ ${#names[@]} -gt 0 ] || mapfile -t names < <(lacking | grep -v '^torch')
  [ ${#names[@]} -gt 0 ] || { echo "nothing is lacking here; name what the other machine lacks"; return; }
  "$PYTHON" - "$WHEELS" "${names[@]}" <<'PY'
import email, os, pathlib, subprocess, sys, zipfile
from packaging.requirements import Requirement
folder, wanted, fetched = sys.argv[1], set(sys.argv[2:]), set()
while more := wanted - fetched:
    options = ["--only-binary=:all:", "--no-deps", "--dest", folder, *os.environ.get("WHEEL_OPTIONS", "").split()]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *options, *sorted(more)], check=True)
    fetched |= more
    for wheel in map(zipfile.ZipFile, pathlib.Path(folder).glob("*.whl")):
        (name,) = (name for name in wheel.namelist() if name.count("/") == 1 and name.endswith(".dist-info/METADATA"))
        needs = map(Requirement, email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist", []))
        plain = (need for need in needs if not need.marker or need.marker.evaluate({"extra": ""}))
        wanted |= {f"{need.name}{need.specifier}" for need in plain if need.name != "torch"}
PY
  du -sh "$WHEELS"
}

install() {
  mapfile -t names < <(lacking | grep -v '^torch')
  [ ${#names[@]} -eq 0 ] && { echo "install: nothing is lacking"; return; }
  local own='import sysconfig; print(sysconfig.get_path("purelib"))' venv=$OUT/venv/bin/python
  "$PYTHON" -m venv --without-pip --system-site-packages "$OUT/venv" || return 1
  "$PYTHON" -c "$own" >"$("$venv" -c "$own")/machine.pth" # a venv of a venv sees nothing of the first
  "$PYTHON" -m pip --python "$venv" install --quiet --no-index --find-links "$WHEELS" "${names[@]}" || return 1
  PYTHON=$venv
  lacking words
}

cuda_tests() {
  timeout "${TESTS_S:-150}" "$PYTHON" -m pytest tests/test_cuda.py tests/plugins/pretrain/test_pretraining_on_cuda.py -m cuda -q -n 4 -rs | tee "$OUT/tests.txt"
}

speed() {
  # shellcheck disable=SC2086  # several words are meant
  timeout "${SPEED_S:-150}" "$PYTHON" -u benchmarks/device_speed.py --model "$MODEL" ${SPEED:-} | tee "$OUT/speed.md"
}

compiled() { # training and embedding, each without torch.compile and with it
  timeout "${TESTS_S:-90}" "$PYTHON" -m pytest tests/test_cuda.py -m cuda -k compiled -q -n 3 -rs | tee "$OUT/compiled_tests.txt"
  # shellcheck disable=SC2086
  timeout "${COMPILED_S:-360}" "$PYTHON" -u benchmarks/device_speed.py --model "$MODEL" --compiled ${SPEED:-} | tee "$OUT/compiled.md"
}

host() { # what the processors beside the GPU can do without a model
  # shellcheck disable=SC2086
  timeout "${HOST_S:-60}" "$PYTHON" -u benchmarks/host_rate.py --rounds 1 ${HOST:-} | tee "$OUT/host.txt"
}

pretrain_once() { # seconds, then further options
  local seconds=$1 corpus=${CORPUS:?folder of text files}
  shift
  # shellcheck disable=SC2086
  timeout --signal=KILL "$seconds" "$PYTHON" -m promptcli pretrain "$corpus"/*.txt --output "$OUT/mini" \
    --tokens "$TOKENS" --batch-tokens "$BATCH" "$@" ${PRETRAIN:-}
}

pretrain() { # killed once on purpose, then resumed
  [ -f "$OUT/mini/config.json" ] && { echo "pretrain: done, $OUT/mini"; return; }
  local resume=()
  if [ -f "$OUT/mini/work/run.json" ]; then resume=(--resume); else
    pretrain_once "${KILL_S:-60}"
    [ -f "$OUT/mini/config.json" ] && { echo "pretrain: done before it was killed; take more TOKENS"; return; }
    [ -f "$OUT/mini/work/run.json" ] && resume=(--resume)
  fi
  pretrain_once "${PRETRAIN_S:-150}" "${resume[@]}"
  local code=$?
  [ $code -eq 137 ] && echo "pretrain: the piece is over; once more goes on where it stood"
  return $code
}

tables() {
  local data=${DATA:?SentEval folder} corpus=${CORPUS:?folder of text files} backbone=mini-bert method resume code=0
  [ -f "$OUT/mini/config.json" ] && backbone=$OUT/mini
  for method in $METHODS; do
    [ -f "$OUT/train.$method.json" ] && continue # done in an earlier piece
    resume=(--force)
    [ -d "$PROMPTCLI_HOME/runs/$method" ] && resume=(--resume)
    # shellcheck disable=SC2086
    timeout "${TABLE_S:-100}" "$PYTHON" -m promptcli train "$method" --backbone "$backbone" \
      --data "$(ls "$corpus"/*.txt | head -1)" --data-dir "$data" --on STS-B:dev --test STS-B --steps 500 \
      --set eval-steps=50 "${resume[@]}" --json ${TRAIN:-} >"$OUT/part.json" &&
      mv "$OUT/part.json" "$OUT/train.$method.json" && echo "tables: $OUT/train.$method.json" || code=1
  done
  return $code
}

piece() {
  echo "== $1"
  local began=$SECONDS
  "$@" || echo "$1: failed with code $?" | tee -a "$OUT/failed.txt"
  echo "$1: $((SECONDS - began)) s" | tee -a "$OUT/seconds.txt"
}

case ${1:-} in
  wheels) shift && wheels "$@" ;;
  check | install | speed | compiled | host | pretrain | tables) "$1" ;;
  tests) cuda_tests ;;
  first) for part in check install compiled host; do piece "$part"; done ;;
  all) for part in check install cuda_tests speed host pretrain tables; do piece "$part"; done ;;
  *) sed -n '2,20s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
