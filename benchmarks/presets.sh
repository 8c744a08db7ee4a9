#!/bin/sh
# Are settings that were found on mini-bert better than the paper's on another narrow backbone?
#
#   sh benchmarks/presets.sh BACKBONE SENTENCES SENTEVAL [STEPS [METHODS]]
#
# Three seeds of simcse at 3e-4 (mini-bert's) and 3e-5 (the paper's), and of promptbert at
# temperature 0.2 and 0.05, scored on STS-B; then both compared over seeds. A run that was stopped
# goes on: give the same line again.
set -eu
backbone=$1 sentences=$2 senteval=$3 steps=${4:-300} methods=${5:-simcse promptbert}

run() { # NAME METHOD OPTIONS...
    name=$1 method=$2
    shift 2
    case " $methods " in *" $method "*) ;; *) return 0 ;; esac
    promptcli -q train "$method" --backbone "$backbone" --data "$sentences" --on STS-B:dev \
        --data-dir "$senteval" --steps "$steps" --set eval-steps=50 --name "$name" \
        --resume --offline "$@"
}

for seed in 0 1 2; do
    run "simcse-found-$seed" simcse --seed "$seed" --learning-rate 3e-4
    run "simcse-paper-$seed" simcse --seed "$seed" --learning-rate 3e-5
    run "promptbert-found-$seed" promptbert --seed "$seed" --batch-size 128 --temperature 0.2 \
        --learning-rate 3e-5
    run "promptbert-paper-$seed" promptbert --seed "$seed" --batch-size 128 --temperature 0.05 \
        --learning-rate 3e-5
done
for method in $methods; do
    promptcli compare "$method-found-*" "$method-paper-*" --data-dir "$senteval"
done
