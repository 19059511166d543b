"""The examples below scripts/slurm and scripts/kubernetes, as far as they go without either: examples_test.py {slurm,kubernetes} DTRUN
Each is given the very environment that the batch system makes of it, and `dtrun --explain` has to understand that."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]

# What srun does with "srun OPTIONS PROGRAM ARGUMENTS", one task after the other, one on each node.
SRUN = """#!/bin/bash
set -eu
echo "srun $*"
while [[ $1 == -* ]]; do shift; done
for node in $(seq 0 $((SLURM_JOB_NUM_NODES - 1))); do
  env SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NUM_NODES=$SLURM_JOB_NUM_NODES SLURM_STEP_NUM_TASKS=$SLURM_JOB_NUM_NODES \\
    SLURM_STEP_TASKS_PER_NODE="1(x$SLURM_JOB_NUM_NODES)" SLURM_STEP_NODELIST=$SLURM_JOB_NODELIST SLURM_NODEID=$node \\
    SLURM_PROCID=$node SLURM_LOCALID=0 SLURMD_NODENAME="$(printf "gpu%03d" $((9 + node)))" "$@"
done
"""


def explain(words, environment):
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert not done.stderr, done.stderr
    return done.stdout


def expect(text, **wanted):
    """option=(value, source), as lines of --explain."""
    for name, (value, source) in wanted.items():
        option = "--" + name.replace("_", "-")
        lines = [line.split() for line in text.splitlines() if line.split()[:1] == [option]]
        assert lines == [[option, value, source]], f"{option}: {lines}, expected {value} from {source}"


def slurm(dtrun):
    script = ROOT / "scripts/slurm/train.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", script], check=True)
    asked = dict(line.split("--", 1)[1].split("=", 1) for line in script.read_text().splitlines() if line.startswith("#SBATCH --"))
    nodes = int(asked["nodes"])
    assert asked["ntasks-per-node"] == "1" and nodes == 2
    with tempfile.TemporaryDirectory() as directory:
        for name, text in (("srun", SRUN), ("dtrun", f'#!/bin/sh\nexec "{dtrun}" --explain "$@"\n')):
            path = pathlib.Path(directory, name)
            path.write_text(text)
            path.chmod(0o755)
        batch = {"PATH": f"{directory}:{os.environ['PATH']}", "HOME": directory, "SLURM_JOB_ID": "123456", "SLURM_JOB_NUM_NODES": str(nodes),
                 "SLURM_NNODES": str(nodes), "SLURM_JOB_NODELIST": "gpu[009-010]", "SLURM_NTASKS_PER_NODE": "1", "ENVIRONMENT": "BATCH",
                 "SLURM_CPUS_PER_TASK": asked["cpus-per-task"], "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
        srun, *tasks = explain(["bash", script, "--steps", "5"], batch).split("Options\n")
        assert srun.split()[1] == "--ntasks-per-node=1" and srun.rstrip().endswith("worker --steps 5"), srun
        assert len(tasks) == nodes, tasks
        for node, task in enumerate(tasks):
            expect(task, nnodes=("2", "SLURM_STEP_NUM_NODES"), node_rank=(str(node), "SLURM_NODEID"), rdzv_id=("123456.0", "SLURM_JOB_ID"),
                   rdzv_endpoint=("gpu009:23456", "SLURM_STEP_NODELIST"), rdzv_backend=("c10d", "SLURM_STEP_NODELIST"))
            assert "  nodes                       2, meeting at gpu009:23456, the coordinator" in task, task
            assert "  RANK=<known when the nodes have met>\n" in task and "WORLD_SIZE=8\n" in task and "MASTER_ADDR=127" not in task, task
        # The same command without srun stays on its node, with a warning.
        done = subprocess.run([dtrun, "--explain", "worker"], env=batch, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0 and "dtrun uses only this one" in done.stderr, done
        lines = [line.split() for line in done.stdout.splitlines()]
        assert ["--nnodes", "1", "default"] in lines, done.stdout


def kubernetes(dtrun):
    try:
        import yaml
    except ImportError:
        print("skipped: no PyYAML")
        return 77
    service, job = yaml.safe_load_all((ROOT / "scripts/kubernetes/train.yaml").read_text())
    name, spec = job["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["metadata"]["name"] == pod["subdomain"] == name
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 2
    assert pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] > 15
    container = pod["containers"][0]
    with tempfile.TemporaryDirectory() as directory:
        token = pathlib.Path(directory, "token")
        token.write_text("0123456789abcdef" * 4)
        token.chmod(pod["volumes"][0]["secret"]["defaultMode"])
        mount = container["volumeMounts"][0]["mountPath"]
        assert any(word == f"--rdzv-token-file={mount}/token" for word in container["args"]), container["args"]
        words = [dtrun, "--explain"] + [word.replace(mount, directory) for word in container["args"]]
        for index in range(spec["completions"]):
            environment = {"PATH": os.environ["PATH"], "HOME": directory, "HOSTNAME": f"{name}-{index}", "JOB_COMPLETION_INDEX": str(index),
                           "KUBERNETES_SERVICE_HOST": "10.96.0.1"} | {entry["name"]: entry["value"] for entry in container["env"]}
            expect(explain(words, environment), nnodes=(str(spec["completions"]), "PET_NNODES"), node_rank=(str(index), "JOB_COMPLETION_INDEX"),
                   rdzv_id=(name, "HOSTNAME"), rdzv_endpoint=(f"{name}-0.{name}:29400", "HOSTNAME"), rdzv_backend=("c10d", "HOSTNAME"))


if __name__ == "__main__":
    sys.exit({"slurm": slurm, "kubernetes": kubernetes}[sys.argv[1]](sys.argv[2]))
