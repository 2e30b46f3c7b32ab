"""The Slurm script, dry: stand-ins for Slurm, Ray and runnel write down what they are called with."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paths import EXAMPLES, ROOT

SCRIPT = ROOT / "tools" / "slurm.sh"
JOB = EXAMPLES / "slurm_job.sh"

# Every stand-in writes a line; NODE is the machine that it runs on.
SAY = 'echo "${NODE:-n1}: $(basename "$0") $*" >> "$CALLS"\n'
STUBS = {
    "scontrol": SAY + "printf '%s\\n' n1 n2 n3\n",
    "hostname": 'echo "10.0.0.${NODE#n} 192.168.0.1"\n',
    "ip": 'echo "2: $6    inet 172.16.0.${NODE#n}/16 brd 172.16.255.255 scope global"\n',
    "srun": SAY
    + """
while [[ $1 == --* ]]; do
    [[ $1 == --nodelist=* ]] && export NODE=${1#*=}
    shift
done
exec "$@"
""",
    "ray": SAY
    + """
if [[ $1 == start ]]; then
    [[ $NODE == "${BROKEN:-}" ]] && { echo 'ray: no such luck' >&2; exit 1; }
    echo "$NODE ${#RAY_AUTH_TOKEN} $RAY_AUTH_MODE" >> "$STARTED"
    exec sleep 60
fi
printf 'Node status\\nActive:\\n'
while read -r node _; do echo " 1 node_$node"; done < "$STARTED"
printf 'Pending:\\n (no pending nodes)\\n 0.0/4.0 CPU\\n'
""",
    "runnel": """
trap 'echo "${NODE:-n1}: stopped" >> "$CALLS"; exit 0' TERM
"""
    + SAY
    + """
for ((i = 0; i < ${WORK:-0}; i++)); do sleep 0.1; done
exit "${STATUS:-0}"
""",
    "rm": SAY,
}


@pytest.fixture
def slurm(tmp_path):
    """Starts the script where commands are stand-ins; gives the process, and what was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in STUBS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}")
        (folder / name).chmod(0o755)
    calls, started = tmp_path / "calls", tmp_path / "started"
    calls.touch()
    started.touch()
    processes = []

    def start(*words, script=SCRIPT, **environ):
        env = {
            "PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(calls), "STARTED": str(started), "NODE": "n1",
            "SLURM_JOB_ID": "40123", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_CPUS_ON_NODE": "32", **environ,
        }  # fmt: skip
        process = subprocess.Popen(
            ["bash", script, *words], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        processes.append(process)
        return process

    start.calls = lambda: calls.read_text().splitlines()
    start.started = lambda: started.read_text().splitlines()
    yield start
    for process in processes:
        process.kill()
        process.communicate()


ON = "srun --overlap --nodes=1 --ntasks=1 --cpu-bind=none --nodelist="
RAY = (
    "ray start --block --disable-usage-stats --temp-dir=/tmp/ray-40123 --object-store-memory=100000000 --num-cpus=32 "
    "--node-ip-address="
)


def test_ray_is_started_on_all_nodes_then_the_command_runs_on_the_first(slurm):
    process = slurm("train", "ppo", "CartPole-v1", "--actors", "90")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "head on n1 at 10.0.0.1:20123, 3 nodes" in out
    calls = [call for call in slurm.calls() if " ray status" not in call and ": srun" not in call]
    assert calls[0] == "n1: scontrol show hostnames n[1-3]"
    assert calls[1] == f"n1: {RAY}10.0.0.1 --head --port=20123 --include-dashboard=false"
    assert sorted(calls[2:4]) == [f"n{i}: {RAY}10.0.0.{i} --address=10.0.0.1:20123" for i in (2, 3)]
    assert calls[4] == "n1: runnel train ppo CartPole-v1 --actors 90 --launcher ray --address 10.0.0.1:20123"
    assert calls[5:] == [f"n{i}: rm -rf /tmp/ray-40123" for i in (1, 2, 3)]
    steps = [call for call in slurm.calls() if ": srun" in call]
    assert sorted(call.split(" bash ")[0] for call in steps[:3]) == [f"n1: {ON}n{i}" for i in (1, 2, 3)]
    assert sorted(slurm.started()) == [f"n{i} 64 token" for i in (1, 2, 3)]  # each has the job's secret
    assert not any("RAY_AUTH" in call for call in slurm.calls())  # and no command line shows it


def test_an_interface_can_be_named(slurm):
    process = slurm("train", "ppo", "CartPole-v1", RUNNEL_INTERFACE="ib0", RUNNEL_PORT="7000")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "at 172.16.0.1:7000" in out
    assert any("--node-ip-address=172.16.0.3 --address=172.16.0.1:7000" in call for call in slurm.calls())


def test_the_runs_status_is_the_jobs(slurm):
    process = slurm("train", "ppo", "CartPole-v1", STATUS="3")
    process.communicate(timeout=60)
    assert process.returncode == 3
    assert slurm.calls()[-1] == "n3: rm -rf /tmp/ray-40123"


def test_when_the_time_is_nearly_up_the_run_is_signalled_and_waited_for(slurm):
    process = slurm("train", "ppo", "CartPole-v1", WORK="600")
    deadline = time.monotonic() + 60.0
    while not any(": runnel train" in call for call in slurm.calls()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert "n1: stopped" in slurm.calls()


def test_a_node_where_ray_does_not_start(slurm):
    process = slurm("train", "ppo", "CartPole-v1", BROKEN="n2", RUNNEL_START_S="2")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ray: no such luck" in err
    assert "found 2 of 3 Ray nodes after 2 s" in err
    assert not any(": runnel" in call for call in slurm.calls())


def test_without_a_command_or_a_job(slurm):
    process = slurm()
    assert "usage: sbatch" in process.communicate(timeout=60)[1]
    assert process.returncode == 2
    process = slurm("train", SLURM_JOB_ID="")
    assert "found no Slurm job: start this with sbatch" in process.communicate(timeout=60)[1]
    assert process.returncode == 1


@pytest.fixture
def job(slurm, tmp_path):
    """Starts the job of the documentation, whose virtual environment changes nothing."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").touch()
    run_dir = tmp_path / "run"

    def start(*words, **environ):
        places = {"RUNNEL": str(ROOT), "RUNNEL_VENV": str(tmp_path / "venv"), "RUN_DIR": str(run_dir)}
        return slurm(*words, script=JOB, **places, **environ)

    start.calls, start.run_dir = slurm.calls, run_dir
    return start


def _runs(calls):
    return [call.removeprefix("n1: runnel ") for call in calls if call.startswith("n1: runnel ")]


def test_the_job_of_the_documentation_trains_then_resumes(job):
    assert subprocess.run(["bash", "-n", JOB], check=False).returncode == 0
    process = job("--steps", "5000", STATUS="3")
    process.communicate(timeout=60)
    assert process.returncode == 3
    (first,) = _runs(job.calls())
    assert first.startswith(
        f"train ppo HalfCheetah-v5 --distribution coarse --actors 28 --envs 112 --run-dir {job.run_dir}"
    )
    assert " --steps 5000 --launcher ray --address " in first
    job.run_dir.mkdir()
    (job.run_dir / "config.json").touch()
    process = job()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert _runs(job.calls())[1].startswith(f"resume {job.run_dir} --launcher ray")
    assert not any("requeue" in call for call in job.calls())


def test_the_job_of_the_documentation_is_queued_again_when_its_time_is_up(job):
    process = job(WORK="600")
    deadline = time.monotonic() + 60.0
    while not _runs(job.calls()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    calls = job.calls()
    assert "n1: scontrol requeue 40123" in calls
    assert calls.index("n1: stopped") < calls.index("n1: scontrol requeue 40123")  # after its checkpoint


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_job_of_the_documentation_trains_and_resumes_on_this_machine(tmp_path):
    """Ray and runnel are real, on one node; Slurm's own commands are stand-ins."""
    pytest.importorskip("ray")
    folder = tmp_path / "bin"
    folder.mkdir()
    stubs = {"scontrol": "echo n1\n", "hostname": "echo 127.0.0.1\n", "srun": STUBS["srun"].replace(SAY, "")}
    for name, text in stubs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}")
        (folder / name).chmod(0o755)
    run_dir = tmp_path / "run"
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {
        **os.environ, "PATH": path, "SLURM_JOB_ID": str(40000 + os.getpid() % 9999), "SLURM_JOB_NODELIST": "n1",
        "SLURM_CPUS_ON_NODE": "4", "RUNNEL": str(ROOT), "RUNNEL_VENV": str(tmp_path), "RUN_DIR": str(run_dir),
    }  # fmt: skip
    (folder / "activate").touch()
    small = ["--actors", "1", "--envs", "8", "--set", "unroll=32", "--steps", "512", "--quiet"]
    for words, steps in ((small, 512), ([], 512)):
        done = subprocess.run(["bash", JOB, *words], env=env, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads((run_dir / "result.json").read_text())
        assert (result["status"], result["env_steps"]) == ("finished", steps)
