#!/usr/bin/env bash
# The tests of prices.sh: one line each, and a failure if any of them fails.
cd "$(dirname "$0")" && . ./prices.sh
failed=0
check() {
  local got
  got=$(total "$1" "$2")
  if [ "$got" = "$3" ]; then echo "ok    $2 at $1 cost $3"; else echo "FAIL  $2 at $1 cost $3, not $got"; failed=1; fi
}
check 100 1 100
check 100 2 200
check 100 3 200
check 250 7 1250
exit $failed
