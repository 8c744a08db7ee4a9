#!/bin/sh
# Embed, search and evaluate with the shipped backbone and demo sets: no network, no data of your own.
# Usage: demo.sh PROMPTCLI  (the program to run)
set -eu
promptcli=${1:-promptcli}
here=$(cd "$(dirname "$0")/.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cp "$here/promptcli/shipped/demo/sentences.txt" "$out/sentences.txt"

say() { printf '\n$ promptcli %s\n' "$*" >&2; }

say 'embed sentences.txt'
"$promptcli" embed "$out/sentences.txt" --offline
say 'index build sentences.txt -o index'
"$promptcli" index build "$out/sentences.txt" -o "$out/index" --offline
say 'index search index "The musician plays her instrument." -k 3'
"$promptcli" index search "$out/index" "The musician plays her instrument." -k 3 --offline
say 'similarity "The exam was easy." "Nobody failed the test."'
"$promptcli" similarity "The exam was easy." "Nobody failed the test." --offline
say 'eval'
"$promptcli" eval --offline
