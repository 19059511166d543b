#!/bin/bash
# worker.sh DIRECTORY: a worker that does nothing and notes when. USR1: fails; USR2: ends well; TERM: stops.
note() { echo "$1 ${EPOCHREALTIME/,/.} $$ $GROUP_RANK $GROUP_WORLD_SIZE $TORCHELASTIC_RESTART_COUNT" >> "$directory/notes.$$"; }
leave() {
  note "$1"
  kill "$sleeper"
  exit "$2"
}
directory=$1
sleep 1000 &
sleeper=$!
trap 'leave failed 3' USR1
trap 'leave ended 0' USR2
trap 'leave stopped 143' TERM
note started
wait
