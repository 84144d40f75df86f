# SPDX-License-Identifier: Apache-2.0 OR MIT
# Sourced by scripts of tests: each check has a line, and `finish` is their exit status. `work` is the script's folder.
passed=0 failed=0

# check NAME COMMAND...: runs it; the end of its output is shown if it fails.
check() {
    local name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        tail -n 200 "$work/log" | sed 's/^/    /'
    fi
}

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
}
