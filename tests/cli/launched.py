#!/usr/bin/env python3
"""`megahost launch`: the jobs of AWS's GPT-3 sample, field by field; what --diff shows and --submit says; what is refused."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import tomllib

source = pathlib.Path(os.environ["MEGAHOST_SOURCE"])
folder = pathlib.Path(tempfile.mkdtemp(prefix="megahost-launched-"))
(folder / "tiny.toml").write_text("""
name = "tiny"
precision = "bf16"
model = { use = "llama", layers = 2, hidden = 64, heads = 8, seq_length = 32 }
data = { use = "mock" }
batch = { global = 32, micro = 1 }
train = { iters = 10 }
device = "cuda"
""")


def launch(*words, status=0, path=None):
    env = os.environ | ({"PATH": path} if path is not None else {})
    done = subprocess.run([os.environ["MEGAHOST"], "launch", *map(str, words)], cwd=folder, text=True, env=env,
                          capture_output=True)
    assert done.returncode == status, done
    return done


# The sample's templates (awslabs/awsome-distributed-ai 95b939cd, 3.test_cases/megatron/megatron-lm/kubernetes/gpt3/manifests)
# with the README's values, as facts. Differences from them are said here.
POD = """\
      claimName: fsx-claim
      path: /mnt/k8s-disks/0
      name: pytorch
      nvidia.com/gpu: "8"
      vpc.amazonaws.com/efa: "32"
      mountPath: /dev/shm
      mountPath: /local
      mountPath: /fsx
      node.kubernetes.io/instance-type: p5.48xlarge
"""
ENVIRONMENT = {
    "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1", "FI_LOG_LEVEL": "1", "FI_EFA_ENABLE_SHM_TRANSFER": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_NCCL_ENABLE_MONITORING": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/local/nccl_trace_rank_",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "^lo",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}
RECIPE = {  # argument of pretrain_gpt.py: (key, value)
    "tensor-model-parallel-size": ("parallel.tensor", 8), "pipeline-model-parallel-size": ("parallel.pipeline", 1),
    "num-layers": ("model.layers", 36), "hidden-size": ("model.hidden", 4096), "num-attention-heads": ("model.heads", 32),
    "seq-length": ("model.seq_length", 2048), "micro-batch-size": ("batch.micro", 1),
    "global-batch-size": ("batch.global", 288), "train-samples": ("train.samples", 146484375),
    "lr-decay-samples": ("lr_schedule.decay_samples", 126953125), "lr-warmup-samples": ("lr_schedule.warmup_samples", 183105),
    "lr": ("optimizer.lr", 6.0e-5), "min-lr": ("lr_schedule.min_lr", 6.0e-6), "lr-decay-style": ("lr_schedule.use", "cosine"),
    "log-interval": ("log.interval", 1), "eval-iters": ("train.eval_iters", 40), "eval-interval": ("train.eval_interval", 1000),
    "data-path": ("data.paths", ["/fsx/gpt2/my-gpt2_text_document"]),
    "vocab-file": ("tokenizer.vocab", "/fsx/gpt2/gpt2-vocab.json"),
    "merge-file": ("tokenizer.merges", "/fsx/gpt2/gpt2-merges.txt"), "split": ("data.split", [98, 2, 0]),
    "clip-grad": ("optimizer.clip_grad", 1.0), "weight-decay": ("optimizer.weight_decay", 0.1),
    "adam-beta1, adam-beta2": ("optimizer.betas", [0.9, 0.95]), "init-method-std": ("model.init_std", 0.006),
    "fp16": ("precision", "fp16"), "recompute-activations": ("recompute.use", "selective"),
}


def find(tree, key):
    for part in key.split("."):
        tree = tree[part]
    return tree


def check_sample():
    launch(source / "recipes/gpt3_aws.toml", "--preset", "aws-gpt3", "--image", "REPO_URI", "-o", "sample")
    train = (folder / "sample/train.yaml").read_text()
    job = train[train.index("kind: PyTorchJob"):]
    for line in POD.splitlines():
        assert re.search(rf"^ *(- )?{re.escape(line.strip())}( |$)", job, re.MULTILINE), line
    found = dict(re.findall(r"^ *- name: (\w+)\n *value: \"?(.*?)\"?  # .", job, re.MULTILINE))
    assert found == ENVIRONMENT, found
    # The sample's workers are two and meet at an etcd; here the first of two pods is the Master.
    assert job.count("image: REPO_URI") == 2 and job.count("replicas: 1") == 2 and job.count("OnFailure") == 2, job
    assert "  name: megatron\n" in job and "backoffLimit: 100\n" in job, job
    block = train[train.index("recipe.toml: |\n"):train.index("---")].split("\n", 1)[1]
    recipe = tomllib.loads("\n".join(line.removeprefix("    ") for line in block.splitlines()))
    for argument, (key, value) in RECIPE.items():
        assert find(recipe, key) == value, (argument, find(recipe, key), value)
    getdata = (folder / "sample/getdata.yaml").read_text()
    for part in ("kind: Job", "claimName: fsx-claim", "mountPath: /fsx", "restartPolicy: Never", "image: REPO_URI",
                 "mkdir -p /fsx/gpt2\n", "cd /fsx/gpt2\n", "/stas/oscar-1GB.jsonl.xz\n", "/bert/gpt2-vocab.json\n",
                 "/bert/gpt2-merges.txt\n"):
        assert part in getdata, part
    # `data prepare` reads what is compressed, and the corpus lies where the training reads it: the sample writes
    # /fsx/my-gpt2 and reads /fsx/gpt2/my-gpt2_text_document. No GPU is asked for.
    prepdata = (folder / "sample/prepdata.yaml").read_text()
    command = re.findall(r"^ *- (\S+)$", prepdata[prepdata.index("command:"):prepdata.index("volumeMounts:")], re.MULTILINE)
    assert [word.strip('"') for word in command] == [
        "megahost", "data", "prepare", "/fsx/gpt2/oscar-1GB.jsonl.xz", "--output", "/fsx/gpt2/my-gpt2", "--recipe",
        "/etc/megahost/recipe.toml", "--append-eod", "--workers", "64"], command
    assert "claimName: fsx-claim" in prepdata and "nvidia.com/gpu" not in prepdata, prepdata
    # A typed option comes before the preset.
    launch(source / "recipes/gpt3_aws.toml", "--preset", "aws-gpt3", "--image", "i", "--nodes", 4, "-o", "four")
    assert "replicas: 3" in (folder / "four/train.yaml").read_text()


SLURM = ("tiny.toml", "--target", "slurm", "--instance", "p5.48xlarge", "--nodes", 2)


def check_plan():
    said = launch(*SLURM, "-o", "job", "--price", "98.32").stdout
    for part in ("16 x p5.48xlarge", "tokens/s", "rank-hours", "node-hours", "USD at 98.32", "job/train.sbatch"):
        assert part in said, said
    big = launch(*SLURM, "-o", "big", "--set", "model.layers=8", "--set", "model.hidden=65536", status=3)
    assert "does not fit into the memory of p5.48xlarge, and nothing was written" in big.stderr, big.stderr
    assert not (folder / "big").exists()


def check_diff():
    assert launch(*SLURM, "-o", "job", "--diff").stdout == ""
    changed = launch(*SLURM, "-o", "job", "--diff", "--hours", 2, "--set", "optimizer.lr=0.5", status=1).stdout
    assert "+#SBATCH --time=2:00:00" in changed and "+lr = 0.5" in changed and "-lr = 3e-4" in changed, changed
    assert launch(*SLURM, "-o", "job", "--diff").stdout == "", "--diff has written"
    patch = subprocess.run(["diff", "-u", "/dev/null", "job/train.sbatch"], cwd=folder, capture_output=True, text=True).stdout
    new = launch(*SLURM, "-o", "new", "--diff", status=1).stdout
    assert [line for line in patch.splitlines() if line[:2] == "+#"] == [
        line.replace("new/", "job/") for line in new.split("new/train.sbatch (now)")[1].splitlines() if line[:2] == "+#"]


def program(name, text):
    bin = folder / "bin"
    bin.mkdir(exist_ok=True)
    (bin / name).write_text("#!/bin/sh\n" + text)
    (bin / name).chmod(0o755)
    return f"{bin}:{os.environ['PATH']}"


KUBERNETES = ("tiny.toml", "--target", "job", "--instance", "p5.48xlarge", "--image", "i", "-o", "kube", "--submit")


def check_submit():
    none = str(folder / "none")
    for words, name in ((KUBERNETES, "kubectl"), ((*SLURM, "-o", "job", "--submit"), "sbatch")):
        said = launch(*words, path=none, status=2).stderr
        assert f"--submit needs {name}, and PATH has none" in said and "the job is written" in said, said
    path = program("kubectl", """
case "$*" in
*get-contexts*) echo east; echo west ;;
*) echo "$*"; [ "$1" != --context=west ] || { echo 'no matches for kind "Job" in version "batch/v1"' >&2; exit 1; } ;;
esac
""")
    assert "apply --filename=kube/train.yaml\n" in launch(*KUBERNETES, path=path).stdout
    assert "--context=east apply" in launch(*KUBERNETES, "--context", "east", path=path).stdout
    said = launch(*KUBERNETES, "--context", "north", path=path, status=2).stderr
    assert 'kubectl has no context "north"' in said and "it knows east, west" in said, said
    said = launch(*KUBERNETES, "--context", "west", path=path, status=1).stderr
    assert "kubectl refused the job" in said and "has not the operator of this target" in said, said
    path = program("kubectl", "exit 0\n")
    assert "has no context" in launch(*KUBERNETES, path=path, status=2).stderr
    for words, meaning in (("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
                            "a limit of your account or QOS"),
                           ("Invalid account or account/partition combination specified", "--sbatch --account=NAME"),
                           ("invalid partition specified: gpus", "--queue NAME"),
                           ("Requested node configuration is not available", "no nodes of the partition"),
                           ("Requested time limit is invalid (missing or exceeds some limit)", "fewer --hours"),
                           ("fatal: Could not establish a configuration source", "this machine belongs to no Slurm"),
                           ("AssocGrpGRES", "share is used up")):
        path = program("sbatch", f"echo \"sbatch: error: {words}\" >&2; exit 1\n")
        said = launch(*SLURM, "-o", "job", "--submit", path=path, status=1).stderr
        assert words in said and meaning in said, said
    path = program("sbatch", 'echo "Submitted batch job 7: $1"\n')
    assert "Submitted batch job 7: job/train.sbatch" in launch(*SLURM, "-o", "job", "--submit", path=path).stdout
    said = launch(*SLURM, "-o", "job", "--submit=getdata", path=path, status=2).stderr
    assert "--submit=getdata: the job has no such part" in said, said
    words = ("tiny.toml", "--target", "torchrun", "--instance", "p5.48xlarge", "-o", "torch", "--submit")
    assert "torchrun is started on each node" in launch(*words, status=2).stderr


def check_refused():
    for words, sentence in (
            (("--target", "slurm", "--instance", "p5.49xlarge"), 'there is no hardware "p5.49xlarge"'),
            (("--target", "slurm", "--instance", "h100"), "h100 is a machine of hardware.toml, and no instance"),
            (("--target", "slurm"), "launch needs --instance"),
            (("--instance", "p5.48xlarge"), "launch needs --target"),
            (("--target", "slurm", "--instance", "p5.48xlarge", "--gpus-per-node", 9), "p5.48xlarge has 8 GPUs"),
            (("--target", "slurm", "--instance", "p5.48xlarge", "--efa", 33), "p5.48xlarge has 32 EFA devices"),
            (("--target", "slurm", "--instance", "p5.48xlarge", "--nodes", 0), "--nodes 0 is no whole number"),
            (("--target", "slurm", "--instance", "p5.48xlarge", "--set", "parallel.tensor=8", "--set",
              "parallel.pipeline=2"),
             "the number of ranks, 8 on 1 node, is no multiple of the 16 ranks"),
            (("--preset", "aws-gpt4"), "did you mean aws-gpt3?"),
            (("--target", "lsf", "--instance", "p5.48xlarge"), "--target"),
            (("--target", "job", "--instance", "trn1.32xlarge", "--image", "i"),
             'trn1.32xlarge has aws.amazon.com/neuron, and device "cuda" does not train on it')):
        said = launch("tiny.toml", *words, "-o", "none", status=2).stderr
        assert sentence in said, (words, said)
        assert not (folder / "none").exists()
    # HyperPod's names are AWS's with a prefix.
    launch("tiny.toml", "--target", "hyperpod", "--instance", "ml.p5.48xlarge", "--image", "i", "-o", "pod")
    assert "instance-type: ml.p5.48xlarge" in (folder / "pod/train.yaml").read_text()
    lost = launch("tiny.toml", "--target", "job", "--instance", "p5.48xlarge", "--image", "i", "-o", "lost").stderr
    assert "what is saved ends with the pod" in lost, lost


def check_trainium():
    """The reference's GPT-3 for Trainium: planned for each instance, jobs for one."""
    recipes = source / "recipes/trainium"
    for recipe, instances in (("gpt3_6.7b.lua", ("trn1.32xlarge", "trn1n.32xlarge")), ("gpt3_5b.lua", ("trn1.32xlarge",)),
                              ("gpt3_6.7b_bs1024.lua", ("trn1.32xlarge", "trn1n.32xlarge")),
                              ("gpt3_6.7b_trn2.lua", ("trn2.48xlarge", "trn2u.48xlarge"))):
        for instance in instances:
            plan = json.loads(subprocess.run([os.environ["MEGAHOST"], "plan", str(recipes / recipe), "--on", instance, "--json"],
                                             cwd=folder, check=True, capture_output=True, text=True).stdout)
            print(recipe, instance, json.dumps(plan)[:300], flush=True)
            assert plan["fits"], (recipe, instance, plan)
    assert sorted(path.name for path in recipes.iterdir()) == ["gpt3_5b.lua", "gpt3_6.7b.lua", "gpt3_6.7b_bs1024.lua",
                                                              "gpt3_6.7b_trn2.lua"]
    first = recipes / "gpt3_6.7b.lua"
    launch(first, "--target", "slurm", "--instance", "trn1.32xlarge", "-o", "trn")
    compile, train = ((folder / f"trn/{name}.sbatch").read_text() for name in ("compile", "train"))
    recipe = tomllib.loads((folder / "trn/recipe.toml").read_text())
    assert recipe["device"]["use"] == "neuron" and recipe["parallel"]["tensor"] == 8, recipe
    exports = [line for line in train.splitlines() if line.startswith("export NEURON")]
    assert len(exports) == 4 and all("  # " in line for line in exports), exports
    assert exports == [line for line in compile.splitlines() if line.startswith("export NEURON")], compile
    assert "#SBATCH --ntasks-per-node=1\n" in train and "NCCL" not in train, train
    launch(first, "--target", "job", "--instance", "trn1.32xlarge", "--image", "i", "--volume", "pvc:fsx-claim:/fsx", "-o", "eks")
    for name in ("compile", "train"):
        text = (folder / f"eks/{name}.yaml").read_text()
        for part in ('aws.amazon.com/neuron: "16"', "node.kubernetes.io/instance-type: trn1.32xlarge", "claimName: fsx-claim",
                     "NEURON_RT_STOCHASTIC_ROUNDING_EN"):
            assert part in text, (name, part, text)
    said = launch(recipes / "gpt3_6.7b_bs1024.lua", "--target", "slurm", "--instance", "trn1.32xlarge", "--nodes", 16, "-o", "none",
                  status=2).stderr
    assert "those of several nodes are in no step yet" in said, said


check_sample()
check_plan()
check_diff()
check_submit()
check_refused()
check_trainium()
