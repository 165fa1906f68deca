#!/usr/bin/env python3
"""HyperPod's agent, as the operator of a cluster drives it: `megahost launch --target hyperpod` writes a job that AWS's model
takes, and the command of its pods runs here for two of them. Their ranks are started, fail and are started again, are stopped
by a signal that lets them save, and end with the numbers of a run that was left alone. Skipped where tests/dist/environment.sh has put no agent."""

import atexit
import importlib.util
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import small_run

PROGRAM = os.environ["MEGAHOST"]
ENVIRONMENT = pathlib.Path(os.environ["MEGAHOST_SOURCE"]) / ".deps/hyperpod-env"
PYTHON = ENVIRONMENT / "bin/python"
if not (ENVIRONMENT / "pins").exists():
    print(f"no {ENVIRONMENT}: ./megahost test dist makes it where a package index is reached")
    sys.exit(77)
if sys.prefix != str(ENVIRONMENT):
    os.execv(PYTHON, [str(PYTHON), *sys.argv])

import yaml  # noqa: E402
from hyperpod_elastic_agent.logagent.log_agent import LogEvaluator, LogState  # noqa: E402

folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-hyperpod-"))
small_run.write_hardware(folder / "own", ranks=2)
small_run.write_recipe(folder / "tiny.toml", "parallel = { data = 4 }", "train = { iters = 240 }", "log = { interval = 10 }",
                       "checkpoint = { interval = 40 }", "comm = { timeout = 20 }")
# The variables that the agent sets for a rank and torchrun does not, and the reverse (agent 1.1.3, PyTorch 2.11).
# GROUP_WORLD_SIZE counts ranks there, and not nodes.
MORE = {"HYPERPOD_ELASTICAGENT_SOCKET_SERVER_PATH", "HYPERPOD_SIGNAL_COORDINATION", "JOB_RESTART_COUNT"}
LESS = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
            "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
            "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
            "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}


def launched(*words):
    """The objects that `megahost launch` writes."""
    env = os.environ | {"MEGAHOST_RECIPE_PATH": f"{folder}/own:{os.environ.get('MEGAHOST_RECIPE_PATH', '')}"}
    run = subprocess.run([PROGRAM, "launch", "tiny.toml", "--target", "hyperpod", "--image", "i", "-o", "job", *words], cwd=folder,
                         env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return [one for one in yaml.safe_load_all((folder / "job/train.yaml").read_text()) if one]


def check_model():
    """AWS's own model of the job, closed: a field that it does not have is refused."""
    file = pathlib.Path(importlib.util.find_spec("sagemaker").submodule_search_locations[0])
    spec = importlib.util.spec_from_file_location("aws", file / "hyperpod/training/config/hyperpod_pytorch_job_unified_config.py")
    aws = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(aws)
    import jsonschema
    schema = aws._HyperPodPytorchJob.model_json_schema(by_alias=False)
    schema["additionalProperties"] = False
    judge = jsonschema.Draft202012Validator(schema)
    for words in ((), ("--hours", "48", "--gang", "kueue", "--queue", "q", "--priority", "high", "--port", "metrics=9400",
                       "--volume", "pvc:claim:/fsx", "--restarts", "0"), ("--gang", "volcano"), ("--gang", "coscheduling")):
        job = launched("--instance", "mine", "--nodes", "2", *words)[-1]
        assert (job["apiVersion"], job["kind"]) == ("sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob"), job
        judge.validate(job["spec"])
        for place in (job["spec"], job["spec"]["runPolicy"], job["spec"]["replicaSpecs"][0],
                      job["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"][0]):
            place["nnodes"] = 2
            assert not judge.is_valid(job["spec"]), place
            del place["nnodes"]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Operator:
    """The part of the operator: two pods with an agent each, and what it says to them."""

    def __init__(self, words=()):
        recipe, job = launched("--instance", "mine", "--nodes", "2")
        (folder / "job/recipe.toml").write_text(recipe["data"]["recipe.toml"])
        pod = job["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"][0]
        assert {"name": "agent", "containerPort": 8080} in pod["ports"], pod
        variables = {one["name"]: one["value"] for one in pod["env"]}
        self.ports, self.agents, self.faults = [free_port(), free_port()], [], 0
        for node, port in enumerate(self.ports):
            command = list(pod["command"])
            assert command[0] == "hyperpodrun" and "/etc/megahost/recipe.toml" in command, command
            command[1:1] = ["--server-host=127.0.0.1", f"--server-port={port}", "--server-log-level=error"]
            command = [word.replace("/tmp/hyperpod", f"{folder}/log{node}").replace("/etc/megahost/recipe.toml", "job/recipe.toml")
                       for word in command]
            env = os.environ | variables | {"OMP_NUM_THREADS": "1", "PATH": f"{ENVIRONMENT}/bin:{folder}:{os.environ['PATH']}"}
            output = open(folder / f"agent{node}.txt", "a")
            self.agents.append(subprocess.Popen([*command, *words], cwd=folder, env=env, stdout=output, stderr=output))
            atexit.register(self.agents[-1].terminate)  # and so its ranks, where a check fails
        self.until("ready")

    def call(self, node, verb, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[node]}/{verb}", method="GET" if verb == "status" else "POST",
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=30).read()

    def statuses(self):
        for agent in self.agents:
            assert agent.poll() is None, said()
        try:
            return [json.loads(self.call(node, "status")) for node in range(2)]
        except OSError:  # not yet
            return [{"status": "absent"}] * 2

    def until(self, *wanted, seconds=60):
        end = time.time() + seconds
        while True:
            found = self.statuses()
            if all(one["status"] in wanted for one in found):
                return found
            assert time.time() < end, (found, said())
            time.sleep(0.1)

    def start(self):
        address = {"master_addr": "127.0.0.1", "master_port": free_port()}
        for node in range(2):
            self.call(node, "start", {"rank": node, "nnodes": 2, "faultCount": self.faults, **address})

    def stop(self, **how):
        self.faults += 1
        for node in range(2):
            self.call(node, "stop", how)
        self.until("ready")

    def shutdown(self):
        for node in range(2):
            self.call(node, "shutdown")
        return [agent.wait(60) for agent in self.agents]


def said():
    lines = [line for node in range(2) for line in (folder / f"agent{node}.txt").read_text().splitlines()
             if "[INFO]" not in line and "] failed (exitcode" not in line]  # the agent says it ten times a second
    return "\n".join(lines[-60:])


def records(run):
    try:
        text = (folder / run / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return []
    lines = text[:text.rfind("\n") + 1].splitlines()
    return [record for record in map(json.loads, lines) if "losses" in record]


def numbers(run):
    return [(record["step"], record["losses"], record["gradient_norm"]) for record in records(run)]


def reached(run, step, operator):
    end = time.time() + 60
    while not records(run) or records(run)[-1]["step"] < step:
        assert time.time() < end, (operator.statuses(), said())
        time.sleep(0.02)


def rank(number):
    """The process of a rank, and its environment."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            pairs = [one.split("=", 1) for one in (process / "environ").read_bytes().decode().split("\0") if "=" in one]
            env = dict(pairs)
            if b"job/recipe.toml" in words and env.get("RANK") == str(number) and b"hyperpodrun" not in words[1]:
                return int(process.name), env
        except OSError:
            pass
    raise AssertionError(f"no rank {number}\n{said()}")


def saved_steps(run):
    return sorted(int(one.name.split("-")[1]) for one in (folder / run / "checkpoints").glob("step-*"))


def check_run():
    (folder / "megahost").symlink_to(PROGRAM)
    operator = Operator(["--run-dir", "whole"])
    operator.start()
    operator.until("completed")
    operator.shutdown()
    operator = Operator(["--run-dir", "pods"])
    operator.start()
    reached("pods", 50, operator)
    pid, env = rank(3)
    assert set(env) & (TORCHRUN | MORE) == (TORCHRUN | MORE) - LESS, set(env) & (TORCHRUN | MORE)
    assert (env["LOCAL_RANK"], env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["GROUP_RANK"], env["GROUP_WORLD_SIZE"]) == (
        "1", "4", "2", "1", "4"), env
    assert env["TORCHELASTIC_USE_AGENT_STORE"] == "False" and env["TORCHELASTIC_RESTART_COUNT"] == "0", env
    # A rank fails; the operator ends the others and starts all again on the same pods.
    os.kill(pid, signal.SIGKILL)
    end = time.time() + 30
    while all(one["status"] != "faulted" for one in operator.statuses()):
        assert time.time() < end, said()
        time.sleep(0.1)
    operator.stop()
    operator.start()
    reached("pods", 110, operator)
    assert rank(0)[1]["TORCHELASTIC_RESTART_COUNT"] == "1"
    # Another job takes the nodes: SIGUSR1, and the step is saved.
    before = saved_steps("pods")
    operator.stop(is_graceful=True, timeout=60)
    saved = saved_steps("pods")
    events = [json.loads(line) for line in (folder / "pods/journal.jsonl").read_text().splitlines()]
    assert saved[-1] > before[-1] and saved[-1] % 40 != 0 and events[-1]["text"] == "SIGUSR1", (before, saved, events[-3:])
    operator.start()
    operator.until("completed")
    assert operator.shutdown() == [0, 0], said()
    assert [one[0] for one in numbers("whole")] == list(range(1, 241)) and numbers("pods") == numbers("whole")
    print("hyperpodrun: started three times, the numbers of a run that was not stopped")


def check_deleted_pods():
    """The kubelet's SIGTERM to the agent: ranks have time to save."""
    operator = Operator(["--run-dir", "deleted", "--set", "train.iters=1000000"])
    operator.start()
    reached("deleted", 5, operator)
    for agent in operator.agents:
        agent.terminate()
    for agent in operator.agents:
        agent.wait(60)
    assert saved_steps("deleted")[-1] == records("deleted")[-1]["step"], (saved_steps("deleted"), said())
    print("SIGTERM to hyperpodrun: saved")


def check_error():
    """The error that ends a rank is in the status that the operator shows."""
    operator = Operator(["--run-dir", "wrong", "--set", "parallel.data=3"])
    operator.start()
    for one in operator.until("faulted"):
        assert one["reason"] == "WorkerCrash" and "Local Rank 0 exited" in one["message"], one
        assert "the layout has 3 ranks (tensor x pipeline x context = 1, data 3), the run has 4" in one["message"], one
    operator.shutdown()
    print("error: handed to the operator")


def check_rules():
    """The rules of the guide on the log of these runs."""
    guide = (pathlib.Path(os.environ["MEGAHOST_SOURCE"]) / "docs/clusters/hyperpod.md").read_text()
    text = guide[guide.index("logMonitoringConfiguration:"):]
    rules = {one["name"]: one for one in yaml.safe_load(text[:text.index("```")])["logMonitoringConfiguration"]}
    assert set(rules) == {"Starts", "Steps", "Speed", "Loss"}, rules
    log = next(iter((folder / "log0").glob("*/attempt_0/0/stdout.log"))).read_text().splitlines()
    steps = [line for line in log if re.match(r"step +\d+/240 \| lm loss ", line)]
    assert len(steps) >= 4 and [int(re.match(r"step +(\d+)", line)[1]) for line in steps] == list(range(10, 10 * len(steps) + 1, 10))
    for name, rule in rules.items():
        judge = LogEvaluator(rule)
        seen = [line for line in log if re.match(rule["logPattern"], line)]
        assert seen == steps, (name, seen, steps)
        judge.evaluate(steps[0])
        assert judge.evaluate(steps[1])[0] == LogState.HEALTHY, name
    # Each finds what it is for.
    slow = LogEvaluator(rules["Speed"] | {"metricThreshold": 10**9})
    assert slow.evaluation_count == 5 and [slow.evaluate(line)[0] for line in (steps * 2)[:5]][-1] == LogState.SLOW
    high = LogEvaluator(rules["Loss"] | {"metricThreshold": 1})
    assert [high.evaluate(line)[0] for line in (steps * 3)[:high.evaluation_count]][-1] == LogState.SLOW
    for name in ("Starts", "Steps"):
        hangs = LogEvaluator(rules[name])
        if name == "Steps":
            hangs.evaluate(steps[0])
        hangs._total_idle_time = -3600 * 24.0  # a day later
        assert hangs.evaluate("nothing")[0] == LogState.HANGING, name
    print("logMonitoringConfiguration: the guide's rules read the log")


check_model()
check_run()
check_rules()
check_deleted_pods()
check_error()
