#!/bin/bash
# A Slurm job that trains on several nodes, and continues by itself in a new job when its time is up:
#
#   sbatch slurm_job.sh
#
# tools/slurm.sh starts Ray on the nodes and stops it again. Set these for your cluster:
#   RUNNEL       a checkout of Runnel on storage that all nodes share
#   RUNNEL_VENV  its virtual environment, by default .venv in the checkout
#   RUN_DIR      the run directory, on storage that all nodes share
#
#SBATCH --job-name=cheetah
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@120

set -euo pipefail

: "${RUNNEL:?set it to a checkout of Runnel}"
export RUNNEL_VENV=${RUNNEL_VENV:-$RUNNEL/.venv}
run_dir=${RUN_DIR:-$PWD/runs/cheetah}

# The first job trains, later ones resume. Arguments of this script, such as --steps 20000, are added to `train`.
if [[ -e $run_dir/config.json ]]; then
    command=(resume "$run_dir")
else
    command=(train ppo HalfCheetah-v5 --distribution coarse --actors 28 --envs 112 --run-dir "$run_dir" "$@")
fi

# A signal two minutes before the end is passed on: the run writes a checkpoint and ends cleanly.
told=''
trap 'told=yes; kill -TERM "$job"' TERM
bash "$RUNNEL/tools/slurm.sh" "${command[@]}" &
job=$!
status=0
wait "$job" || status=$?
if [[ -n $told ]]; then
    status=0
    wait "$job" || status=$?
    if ((status == 0)); then
        scontrol requeue "$SLURM_JOB_ID" # the same job again, which finds the run directory
    fi
fi
exit "$status"
