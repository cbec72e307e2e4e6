#!/bin/sh
# Runs a script with the first Python that can run it; exit code 77: none can.
for python in /usr/bin/python3 python3; do
  command -v "$python" >/dev/null || continue
  "$python" "$@"
  code=$?
  [ "$code" = 77 ] || exit "$code"
done
exit 77
