#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# How long the targets of `make test` take. `make/timed.sh TARGET -c LINE` is make's shell: runs a line of a recipe, and
# notes its times in the file TEST_TIMES. `make/timed.sh` without words prints them.
set -u

# A line that make runs for itself, $(shell ...), is of no target.
[ $# != 2 ] || exec bash -c "$2"
if [ $# = 3 ]; then
    times=$TEST_TIMES began=$EPOCHREALTIME
    # Wall time, and processor time of the line and of all that it waited for. Lower channels are make's own.
    TIMEFORMAT="%R %U %S"
    exec 18>&1 19>&2
    # Whatever make the line starts itself is part of it.
    took=$({ time env -u TEST_TIMES bash -c "$3" >&18 2>&19 18>&- 19>&-; } 2>&1)
    status=$?
    note="$1 $began $took"
    # Some languages have a comma.
    echo "${note//,/.}" >>"$times"
    exit "$status"
fi

[ -s "$TEST_TIMES" ] || exit 0
echo "seconds:  from        to      took   processor  target"
LC_ALL=C awk '
    { if (!first || $2 < first) first = $2
      if (!($1 in from) || $2 < from[$1]) from[$1] = $2
      if ($2 + $3 > to[$1]) to[$1] = $2 + $3
      took[$1] += $3; cpu[$1] += $4 + $5 }
    END { for (target in took) if (took[target] >= 1)
              printf "%14.0f%10.0f%10.0f%12.0f  %s\n", from[target] - first, to[target] - first, took[target], cpu[target],
                  target }' "$TEST_TIMES" | sort -n
