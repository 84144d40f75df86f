#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the Slurm prolog and epilog with a fake `backstay`: started as the user, ended in every way.
# shellcheck disable=SC2016,SC2034
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d "${TMPDIR:-/tmp}/backstay-deploy.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
passed=0

check() {
    if ! eval "$2"; then
        echo "FAILED  $1: $2" >&2
        cat "$work"/state/*/log >&2 2>/dev/null || true
        exit 1
    fi
    passed=$((passed + 1))
    echo "ok      $1"
}

cat >"$work/backstay" <<END
#!/bin/sh
echo "\$@ as \$(id -un)" > "\$BACKSTAY_RENDEZVOUS/said"
[ ! -e $work/stubborn ] || trap '' TERM
while [ ! -e "\$BACKSTAY_RENDEZVOUS/over" ] || [ -e $work/stubborn ]; do sleep 0.05; done
END
chmod 755 "$work/backstay"
export BACKSTAY_DEPLOY_CONF=/dev/null BACKSTAY_PROGRAM="$work/backstay" BACKSTAY_AGENT_STATE="$work/state"
export BACKSTAY_AGENT_GRACE_S=2 SLURM_JOB_ID=7
SLURM_JOB_USER=$(id -un)
if [ "$(id -u)" = 0 ] && getent passwd nobody >/dev/null; then
    SLURM_JOB_USER=nobody
fi
export SLURM_JOB_USER

started() {
    for _ in $(seq 100); do
        [ ! -s "$work/state/7/said" ] || return 0
        sleep 0.05
    done
    return 1
}

# Gone, or dead and not yet waited for by process 1.
is_gone() { ! grep -qs '^State:[[:space:]]*[RSDTtI]' "/proc/$1/status"; }

for script in deploy/slurm/*.sh; do
    check "$script is a POSIX script" "sh -n $script"
done
deploy/slurm/prolog.sh
check "the agent runs" started
check "as the user of the job" 'grep -qx "agent --job slurm-7 as $SLURM_JOB_USER" "$work/state/7/said"'
check "its folder is its own" '[ "$(stat -c "%a %U" "$work/state/7")" = "700 $SLURM_JOB_USER" ]'
pid=$(cat "$work/state/7/pid")
deploy/slurm/prolog.sh
check "a second prolog changes nothing" '[ "$(cat "$work/state/7/pid")" = "$pid" ]'
deploy/slurm/epilog.sh
check "the epilog ends it by a file" 'is_gone $pid && [ ! -e "$work/state/7" ]'
touch "$work/stubborn"
deploy/slurm/prolog.sh
check "an agent that does not listen runs" started
pid=$(cat "$work/state/7/pid")
deploy/slurm/epilog.sh
check "and is killed" 'is_gone $pid && [ ! -e "$work/state/7" ]'
check "an epilog without an agent is well" deploy/slurm/epilog.sh
check "a node without backstay starts jobs" 'BACKSTAY_PROGRAM=/no/such deploy/slurm/prolog.sh && [ ! -e "$work/state/7" ]'
check "a user who is not there is no reason to fail" 'SLURM_JOB_USER=no-such-user deploy/slurm/prolog.sh'
if command -v systemd-analyze >/dev/null; then
    mkdir "$work/unit"
    sed "s|/usr/local/bin/backstay|$work/backstay|" "deploy/systemd/backstay-agent@.service" >"$work/unit/backstay-agent@.service"
    check "the unit is well formed" 'XDG_RUNTIME_DIR="$work" systemd-analyze verify --user "$work/unit/backstay-agent@j.service"'
fi
echo "$passed passed, 0 failed"
