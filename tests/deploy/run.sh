#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the Slurm prolog, task prolog and epilog: with a fake `backstay`, started as the user and ended in
# every way; with the real one and an application, which meet. run.sh BACKSTAY APPLICATION.
# shellcheck disable=SC2016,SC2034
set -euo pipefail
cd "$(dirname "$0")/../.."

real=$(realpath "$1") application=$(realpath "$2")
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
[ "\$1" != rm ] || exit 0
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
# As Slurm does: what is left in the script's process group when it ends is killed, however slow that was.
mkdir "$work/slow"
for tool in setsid setpriv; do
    printf '#!/bin/sh\nsleep 0.3\nexec "%s" "$@"\n' "$(command -v $tool)" >"$work/slow/$tool"
    chmod 755 "$work/slow/$tool"
done
setsid env PATH="$work/slow:$PATH" deploy/slurm/prolog.sh &
prolog=$!
wait "$prolog"
kill -KILL -- "-$prolog" 2>/dev/null || true
check "the agent runs" started
check "as the user of the job" 'grep -qx "agent --job slurm-7 as $SLURM_JOB_USER" "$work/state/7/said"'
check "its folder is its own" '[ "$(stat -c "%a %U" "$work/state/7")" = "700 $SLURM_JOB_USER" ]'
pid=$(cat "$work/state/7/pid")
deploy/slurm/prolog.sh
check "a second prolog changes nothing" '[ "$(cat "$work/state/7/pid")" = "$pid" ]'
deploy/slurm/epilog.sh
check "the epilog ends it by a file" 'is_gone $pid && [ ! -e "$work/state/7" ]'
# A job that is over at once: the agent's process is not the agent yet.
PATH="$work/slow:$PATH" deploy/slurm/prolog.sh
pid=$(cat "$work/state/7/pid")
BACKSTAY_AGENT_GRACE_S=0 deploy/slurm/epilog.sh
check "the epilog ends one that has hardly begun" 'is_gone $pid && [ ! -e "$work/state/7" ]'
touch "$work/stubborn"
deploy/slurm/prolog.sh
check "an agent that does not listen runs" started
pid=$(cat "$work/state/7/pid")
deploy/slurm/epilog.sh
check "and is killed" 'is_gone $pid && [ ! -e "$work/state/7" ]'
check "an epilog without an agent is well" deploy/slurm/epilog.sh
# With the real command: the application finds the agent's folder by what the task prolog prints.
meet() {
    export BACKSTAY_PROGRAM="$real" BACKSTAY_STORE_PATH="$work/stores"
    mkdir -p "$work/stores" && chmod 777 "$work/stores"
    deploy/slurm/prolog.sh
    unset BACKSTAY_STORE_PATH
    for _ in $(seq 200); do
        [ ! -e "$work/stores/$1/$(uname -n)" ] || break
        sleep 0.05
    done
    [ -n "$(ls -A "$work/stores/$1/$(uname -n)")" ] || return 1
    env -u BACKSTAY_JOB deploy/slurm/task-prolog.sh >"$work/printed"
    grep -qx "export BACKSTAY_JOB=$1" "$work/printed" &&
        grep -qx "export BACKSTAY_STORE_PATH=$work/stores" "$work/printed" || return 1
    sed -n 's/^export //p' "$work/printed" >"$work/variables"
    setpriv --reuid "$SLURM_JOB_USER" --regid "$(id -g "$SLURM_JOB_USER")" --init-groups -- \
        env $(cat "$work/variables") "$work/application" >"$work/output" 2>&1 || { cat "$work/output"; return 1; }
    # One folder: the agent's place and the application's store.
    [ "$(find "$work/stores" -mindepth 2 -maxdepth 2 | wc -l)" = 1 ] && [ -e "$work/stores/$1/$(uname -n)/store.backstay" ]
}
# Where the user may read them.
cp "$application" "$work/application"
cp "$real" "$work/real-backstay"
chmod 755 "$work/application" "$work/real-backstay"
real="$work/real-backstay"
export BACKSTAY_AGENT_STATE="$work/real"
rm -f "$work/stubborn"
check "agent and application meet under the name of the allocation" 'meet slurm-7'
check "who names the job otherwise is told" \
    'BACKSTAY_JOB=other deploy/slurm/task-prolog.sh | grep "^print .*--comment=backstay:other" >/dev/null'
check "its own name is left alone" '! BACKSTAY_JOB=other deploy/slurm/task-prolog.sh | grep "export BACKSTAY_JOB" >/dev/null'
pid=$(cat "$work/real/7/pid")
BACKSTAY_STORES_AT_END=keep deploy/slurm/epilog.sh
check "the epilog keeps a store where it is told to" 'is_gone $pid && [ -e "$work/stores/slurm-7/$(uname -n)/store.backstay" ]'
check "the store is found again" 'meet slurm-7 && grep -q "finished with checkpoint 5: this start begins anew" "$work/output"'
touch "$work/stores/slurm-7/$(uname -n)/mine"
deploy/slurm/epilog.sh 2>/dev/null
check "what is not Backstay's stays" '[ "$(find "$work/stores/slurm-7" -type f)" = "$work/stores/slurm-7/$(uname -n)/mine" ]'
rm -r "$work/stores/slurm-7"
check "another store of an allocation is made" 'meet slurm-7'
deploy/slurm/epilog.sh
check "the store of an allocation goes with it" '[ ! -e "$work/stores/slurm-7" ] && [ ! -e "$work/real/7" ]'
export SLURM_JOB_COMMENT="urgent backstay:heat"
check "agent and application meet under the name in the comment" 'meet heat'
deploy/slurm/epilog.sh
check "the store of a named job is kept" '[ -e "$work/stores/heat/$(uname -n)/store.backstay" ]'
for wrong in backstay:../x backstay: 'backstay:$(id)' notbackstay:x; do
    export SLURM_JOB_COMMENT="$wrong"
    deploy/slurm/prolog.sh
    check "the comment $wrong names no job" '[ "$(cat "$work/real/7/job")" = slurm-7 ]'
    deploy/slurm/epilog.sh
done
check "an allocation without a store leaves no folder" \
    '[ -z "$(find /dev/shm /var/tmp -maxdepth 2 -path "*/backstay-$(id -u "$SLURM_JOB_USER")/slurm-7" 2>/dev/null)" ]'
unset SLURM_JOB_COMMENT
export BACKSTAY_AGENT_STATE="$work/state"

check "a node without backstay starts jobs" 'BACKSTAY_PROGRAM=/no/such deploy/slurm/prolog.sh && [ ! -e "$work/state/7" ]'
check "a user who is not there is no reason to fail" 'SLURM_JOB_USER=no-such-user deploy/slurm/prolog.sh'
if command -v systemd-analyze >/dev/null; then
    mkdir "$work/unit"
    sed "s|/usr/local/bin/backstay|$work/backstay|" "deploy/systemd/backstay-agent@.service" >"$work/unit/backstay-agent@.service"
    check "the unit is well formed" 'XDG_RUNTIME_DIR="$work" systemd-analyze verify --user "$work/unit/backstay-agent@j.service"'
fi
echo "$passed passed, 0 failed"
