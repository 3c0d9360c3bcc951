#!/bin/sh
# nvcc_log.sh LOG COMMAND...: runs a compiler and keeps what it says, whole or not at all; on failure it is shown.
set -u
log=$1
shift
if "$@" >"$log.part" 2>&1; then
  mv "$log.part" "$log"
else
  status=$?
  cat "$log.part" >&2
  exit "$status"
fi
