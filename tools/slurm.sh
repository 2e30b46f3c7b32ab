#!/bin/bash
# Runs a runnel command on a Slurm allocation: starts Ray on every node, waits until all are there, runs the command
# on the first, and takes everything down. docs/cluster.md has more.
#
#   sbatch --nodes=4 --cpus-per-task=32 tools/slurm.sh train ppo HalfCheetah-v5 --distribution coarse --actors 120 --envs 480
#   sbatch --nodes=4 --cpus-per-task=32 tools/slurm.sh resume runs/halfcheetah
#
# GPUs are asked for as usual (--gpus-per-node=4). Set before, or in a copy of this file:
#   RUNNEL_VENV        a virtual environment on storage that all nodes share, to be activated first
#   RUNNEL_INTERFACE   the network interface that nodes reach each other by, as in ib0 (the first address of each)
#   RUNNEL_PORT        of Ray's head (from the job's number, so that jobs on one node do not meet)
#
#SBATCH --job-name=runnel
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=B:TERM@120
# Two minutes before the time is up the run is told: it writes a checkpoint, and `resume` goes on from there.

set -euo pipefail

if (($# == 0)); then
    echo "usage: sbatch [options] $0 train|resume ...: what stands after \`runnel\`, without --launcher and --address" >&2
    exit 2
fi
: "${SLURM_JOB_ID:?found no Slurm job: start this with sbatch}"
if [[ -n ${RUNNEL_VENV:-} ]]; then
    source "$RUNNEL_VENV/bin/activate"
fi

start_s=${RUNNEL_START_S:-180} # how long Ray may take to be up everywhere
port=${RUNNEL_PORT:-$((20000 + SLURM_JOB_ID % 10000))}
folder=/tmp/ray-$SLURM_JOB_ID # short: sockets stand in it
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

# Whoever can reach Ray's ports could run code on the nodes; with a token, only this job can. It is passed on to the
# other nodes in the environment, which srun does, and never stands in a command line.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN
# Ray would kill the actor that holds a node's workers where memory runs short; runnel replaces single workers instead.
export RAY_memory_monitor_refresh_ms=0 RAY_USAGE_STATS_ENABLED=0

here() { # the address of the node that this is called on
    if [[ -n ${RUNNEL_INTERFACE:-} ]]; then
        ip -4 -o addr show dev "$RUNNEL_INTERFACE" | awk '{ sub("/.*", "", $4); print $4; exit }'
    else
        hostname -I | awk '{ print $1; exit }'
    fi
}
export RUNNEL_INTERFACE=${RUNNEL_INTERFACE:-}
export -f here

on=(srun --overlap --nodes=1 --ntasks=1 --cpu-bind=none) # one node, beside what else runs there

begin() { # Ray on a node
    "${on[@]}" --nodelist="$1" bash -c "exec ray start --block --disable-usage-stats --temp-dir=$folder \
        --object-store-memory=100000000 --num-cpus=\$SLURM_CPUS_ON_NODE --node-ip-address=\$(here) $2" &
    steps+=($!)
}

running() { # how many nodes Ray has
    timeout 10 ray status --address="$address" 2>/dev/null |
        awk '/^(Active|Idle):/ { on = 1; next } /^Pending:/ { on = 0 } on { n += $1 } END { print n + 0 }' || true
}

await() {
    local deadline=$((SECONDS + start_s))
    until (($(running) >= $1)); do
        if ((SECONDS > deadline)); then
            echo "found $(running) of $1 Ray nodes after $start_s s; see what \`ray start\` has said above" >&2
            exit 1
        fi
        sleep 1
    done
}

finish() {
    trap - EXIT
    kill "${steps[@]}" 2>/dev/null || true # srun passes it on, and ends what it has started
    wait
    for node in "${nodes[@]}"; do
        "${on[@]}" --nodelist="$node" rm -rf "$folder" || true
    done
}

steps=() run='' told=''
trap finish EXIT
trap 'told=yes; kill -TERM $run 2>/dev/null || true' TERM INT

address=$(here):$port # this script runs on the first node
echo "Ray: head on ${nodes[0]} at $address, ${#nodes[@]} nodes"
begin "${nodes[0]}" "--head --port=$port --include-dashboard=false"
await 1
for node in "${nodes[@]:1}"; do
    begin "$node" "--address=$address"
done
await "${#nodes[@]}"

runnel "$@" --launcher ray --address "$address" &
run=$!
[[ -z $told ]] || kill -TERM "$run" # while Ray was being started
status=0
wait "$run" || status=$?
while [[ -n $told ]]; do # a signal ended `wait`, not the run
    told='' status=0
    wait "$run" || status=$?
done
exit "$status"
