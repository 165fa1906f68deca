#!/usr/bin/env python3
"""Everything that `megahost launch` writes for Kubernetes, read by other programs: kubernetes-validate (strict) for what
Kubernetes itself has, Kubeflow's own models of PyTorchJob, MPIJob, TrainJob, its runtime and JobSet, in which fields that they
do not name are refused, and the rules of their webhooks. Wrong fields that are put in are found."""

import copy
import importlib
import importlib.util
import json
import pathlib
import sys
import types
import warnings

import kubernetes_validate
import jsonschema
import yaml

from launched_files import CASES, COMMON, KUBERNETES, emitted, folder, megahost

VERSION = "1.33"
TRAINER_RESERVED = {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"}
# Objects of which no package has a model: every field that may be there.
CLOSED = {
    "ComputeDomain": {"numNodes": int, "channel": {"resourceClaimTemplate": {"name": str}}},
    "PodGroup scheduling.volcano.sh/v1beta1": {"minMember": int, "queue": str, "priorityClassName": str},
    "PodGroup scheduling.x-k8s.io/v1alpha1": {"minMember": int, "scheduleTimeoutSeconds": int},
    "HyperPodPyTorchJob": {"nprocPerNode": str, "runPolicy": {"cleanPodPolicy": str, "jobMaxRetryCount": int,
                                                               "activeDeadlineSeconds": int}},
    "replica of HyperPod": {"name": str, "replicas": int},
}


def old_models():
    """Kubeflow's first models, without the client that their package's start imports."""
    place = pathlib.Path(importlib.util.find_spec("kubeflow_trainer_api").origin).parents[1] / "kubeflow"
    for name in ("kubeflow", "kubeflow.training", "kubeflow.training.models"):
        module = types.ModuleType(name)
        module.__path__ = [str(place.parent / name.replace(".", "/"))]
        sys.modules[name] = module
    configuration = types.ModuleType("kubeflow.training.configuration")
    configuration.Configuration = lambda: types.SimpleNamespace(client_side_validation=True)
    sys.modules[configuration.__name__] = configuration

    modules = [importlib.import_module("kubeflow.training.models." + file.stem)
               for file in sorted((place / "training/models").glob("kubeflow_org_v1_*.py"))]

    def model(kind):
        return next(getattr(module, kind) for module in modules if hasattr(module, kind))

    return model


MODEL = old_models()
SCALARS = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def check_old(kind, value, where):
    """A value against a model of openapi-generator: `attribute_map` has its keys, `openapi_types` their types."""
    model = MODEL(kind)
    types_of = {key: model.openapi_types[name] for name, key in model.attribute_map.items()}
    for key, one in value.items():
        assert key in types_of, f"{where}.{key} is no field of {kind}"
        check_type(types_of[key], one, f"{where}.{key}")


def check_type(name, value, where):
    if name in SCALARS:
        assert isinstance(value, SCALARS[name]) and (name != "int" or not isinstance(value, bool)), (where, value, name)
    elif name.startswith(("dict(", "list[")):
        inner = name[5:-1].split(", ")[-1]
        for key, one in (value.items() if name.startswith("dict") else enumerate(value)):
            check_type(inner, one, f"{where}.{key}")
    elif name == "V1PodTemplateSpec":
        check_pod(value)
    elif name == "V1ObjectMeta":
        builtin({"apiVersion": "v1", "kind": "ConfigMap", "metadata": value})
    else:
        check_old(name, value, where)


def close(schema):
    """Closes every object of a JSON Schema, and says what the numbers with units are."""
    for name, one in schema["$defs"].items():
        if name.endswith(("Quantity", "IntOrString")):
            schema["$defs"][name] = {"type": ["string", "integer"]}
        elif one.get("properties"):
            one["additionalProperties"] = False
    schema["additionalProperties"] = False
    return schema


def new_schema(name):
    for file in pathlib.Path(importlib.util.find_spec("kubeflow_trainer_api").origin).parent.glob("models/*.py"):
        if file.stem.replace("_", "") == name.lower():
            module = importlib.import_module("kubeflow_trainer_api.models." + file.stem)
            return close(next(one for key, one in vars(module).items() if key.lower() == name.lower()).model_json_schema())
    raise AssertionError(name)


NEW = {
    "TrainJob": new_schema("TrainerV1alpha1TrainJob"),
    "TrainingRuntime": new_schema("TrainerV1alpha1TrainingRuntime"),
    "JobSet": new_schema("JobsetV1alpha2JobSetSpec"),
}


def once(judge):
    """A part that a judge has found right is not judged again: most of a file stays as it is while one field of it is wrong."""
    right = set()

    def judged(*args):
        key = json.dumps(args)
        if key not in right:
            judge(*args)
            right.add(key)

    return judged


@once
def new(kind, document):
    jsonschema.Draft202012Validator(NEW[kind]).validate(document)


@once
def builtin(document):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an unknown kind is only warned of
        kubernetes_validate.validate(document, VERSION, strict=True)


def check_closed(fields, value, where):
    for key, one in value.items():
        assert key in fields, f"{where}.{key} is no field"
        if isinstance(fields[key], dict):
            check_closed(fields[key], one, f"{where}.{key}")
        else:
            assert isinstance(one, fields[key]), (where, key, one)


def check_pod(template):
    """A pod as Kubernetes has it, and what it refuses or leaves unchecked."""
    builtin({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": template})
    spec = template["spec"]
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    for one in spec["containers"]:
        for mount in one.get("volumeMounts", []):
            assert mount["name"] in volumes, (mount, volumes)
        needs = one.get("resources", {})
        check_resources(needs)
        claims = {claim["name"] for claim in spec.get("resourceClaims", [])}
        assert {claim["name"] for claim in needs.get("claims", [])} <= claims, needs
        names = [variable["name"] for variable in one.get("env", [])]
        assert len(names) == len(set(names)), names
        assert all(isinstance(variable["value"], str) for variable in one.get("env", [])), one["env"]


def check_resources(needs):
    requests, limits = needs.get("requests", {}), needs.get("limits", {})
    assert all(isinstance(value, str) for value in [*requests.values(), *limits.values()]), needs
    for name, value in limits.items():
        if "/" in name or name.startswith("hugepages"):
            assert requests.get(name) == value, needs
    if any(name.startswith("hugepages") for name in limits):
        assert "memory" in requests or "cpu" in requests, needs


def check_pytorchjob(job):
    check_old("KubeflowOrgV1PyTorchJob", job, "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["replicas"] == 1
    for one in replicas.values():
        assert [c["name"] for c in one["template"]["spec"]["containers"]] == ["pytorch"], one
    pods = sum(one["replicas"] for one in replicas.values())
    return pods * int(job["spec"]["nprocPerNode"])


def check_hyperpod(job):
    """The suite dist compares it with AWS's own model."""
    spec = job["spec"]
    assert job["apiVersion"] == "sagemaker.amazonaws.com/v1"
    replica, = spec["replicaSpecs"]
    check_closed(CLOSED["HyperPodPyTorchJob"], {key: one for key, one in spec.items() if key != "replicaSpecs"}, "HyperPodPyTorchJob")
    check_closed(CLOSED["replica of HyperPod"], {key: one for key, one in replica.items() if key != "template"}, "replicaSpecs")
    check_pod(replica["template"])
    return replica["replicas"] * int(spec["nprocPerNode"])


def check_mpijob(job):
    assert job["apiVersion"] == "kubeflow.org/v2beta1"
    check_old("KubeflowOrgV1MPIJobSpec", job["spec"], "MPIJob.spec")
    replicas = job["spec"]["mpiReplicaSpecs"]
    ranks = replicas["Worker"]["replicas"] * job["spec"]["slotsPerWorker"]
    launcher = replicas["Launcher"]["template"]["spec"]["containers"][0]
    assert f"-np {ranks} " in " ".join(launcher["command"]), launcher
    return ranks


def check_trainjob(job):
    new("TrainJob", job)
    trainer = job["spec"]["trainer"]
    check_resources(trainer.get("resourcesPerNode", {}))
    assert not TRAINER_RESERVED & {variable["name"] for variable in trainer.get("env", [])}, trainer
    return trainer["numNodes"] * trainer["numProcPerNode"]


def check_runtime(runtime):
    new("TrainingRuntime", runtime)
    job, = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert job["name"] == "node" and job["template"]["metadata"]["labels"] == label, job
    pod = job["template"]["spec"]["template"]
    assert [one["name"] for one in pod["spec"]["containers"]] == ["node"], pod
    check_pod(pod)


def check_indexed(spec, name):
    builtin({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
    check_pod(spec["template"])
    assert spec["completions"] == spec["parallelism"] and spec["completionMode"] == "Indexed"
    env = {one["name"]: one["value"] for one in spec["template"]["spec"]["containers"][0]["env"]}
    assert env["PET_NNODES"] == str(spec["completions"]), env
    return spec["completions"] * int(env["PET_NPROC_PER_NODE"]), env["PET_MASTER_ADDR"]


def check_jobset(jobset):
    assert jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    new("JobSet", jobset["spec"])
    node, = jobset["spec"]["replicatedJobs"]
    name = jobset["metadata"]["name"]
    ranks, master = check_indexed(node["template"]["spec"], name)
    assert master == f"{name}-{node['name']}-0-0.{name}", master
    return ranks


def check(documents):
    """All documents of a file. Returns the ranks of its job."""
    ranks = None
    services = {one["metadata"]["name"] for one in documents if one["kind"] == "Service"}
    for one in documents:
        kind = one["kind"]
        if kind == "PyTorchJob":
            ranks = check_pytorchjob(one)
        elif kind == "MPIJob":
            ranks = check_mpijob(one)
        elif kind == "HyperPodPyTorchJob":
            ranks = check_hyperpod(one)
        elif kind == "TrainJob":
            ranks = check_trainjob(one)
            ref = one["spec"]["runtimeRef"]
            assert ref["name"] in {other["metadata"]["name"] for other in documents if other["kind"] == ref["kind"]}
        elif kind == "TrainingRuntime":
            check_runtime(one)
        elif kind == "JobSet":
            ranks = check_jobset(one)
        elif kind == "Job" and one["spec"].get("completionMode"):
            ranks, master = check_indexed(one["spec"], one["metadata"]["name"])
            builtin(one)
            subdomain = one["spec"]["template"]["spec"].get("subdomain")
            assert one["spec"]["completions"] == 1 or subdomain in services and master.endswith("." + subdomain), one
        elif kind in ("ComputeDomain", "PodGroup"):
            fields = CLOSED.get(kind) or CLOSED[f"{kind} {one['apiVersion']}"]
            check_closed(fields, one["spec"], kind)
            assert set(one) == {"apiVersion", "kind", "metadata", "spec"}, one
        else:
            builtin(one)
    return ranks


def paths(value, path=()):
    """Every table of a document."""
    if isinstance(value, dict):
        yield path
        for key, one in value.items():
            yield from paths(one, path + (key,))
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from paths(one, path + (i,))


FREE = {"labels", "annotations", "matchLabels", "nodeSelector", "data", "requests", "limits", "volumeAttributes", "selector",
        "pytorchReplicaSpecs", "mpiReplicaSpecs"}


def check_planted(documents):
    """A field that no object has, in each table whose keys are not the user's, is found; so is a count that is a word."""
    planted = 0
    for i, document in enumerate(documents):
        for path in paths(document):
            top_or_free = not path or path[-1] in FREE or path == ("metadata",) or path[:1] == ("metadata",)
            service_selector = path and path[-1] == "selector" and document["kind"] == "Service"
            if top_or_free or service_selector:
                continue
            wrong = copy.deepcopy(documents)
            place = wrong[i]
            for key in path:
                place = place[key]
            place["nnodes"] = 2
            try:
                check(wrong)
            except Exception:
                planted += 1
                continue
            raise AssertionError(f"{document['kind']}: nnodes at {'.'.join(map(str, path))} is not found")
    return planted


GPUS = {"p5.48xlarge": 8, "p6e-gb200.36xlarge": 4, "g5.xlarge": 1, "p4d.24xlarge": 8, "p5en.48xlarge": 8}


def main():
    files = planted = 0
    for target in KUBERNETES:
        for number, (instance, nodes, words) in enumerate(CASES):
            documents = emitted("--target", target, "--instance", instance, "--nodes", nodes, *COMMON, *words)
            ranks = check(documents)
            assert ranks == nodes * GPUS[instance.split(",")[0]], (target, instance, ranks)
            files += 1
            if number == 1:
                planted += check_planted(documents)
    for api in ("2.0", "2.1", "2.2", "2.3"):
        documents = emitted("--target", "trainjob", "--api", api, "--instance", "p5.48xlarge", "--nodes", 2, *COMMON,
                            "--hours", 1)
        check(documents)
        job = next(one for one in documents if one["kind"] == "TrainJob")
        assert ("activeDeadlineSeconds" in job["spec"]) == (api >= "2.2"), job
        files += 1
    # The objects that go with a job.
    megahost("--target", "job", "--instance", "g5.xlarge", *COMMON, "-o", "data", "--fetch", "https://host/a.jsonl.xz",
             "--fetch-to", "/fsx/text", "--prepare", "/fsx/text/a.jsonl.xz", "--prepare-to", "/fsx/text/a",
             "--tensorboard", "tensorboard:1")
    for name in ("getdata", "prepdata", "tensorboard", "train"):
        documents = list(yaml.safe_load_all((folder / f"data/{name}.yaml").read_text()))
        check(documents)
        for one in documents:
            if one["kind"] in ("Job", "Deployment"):
                check_pod(one["spec"]["template"])
        files += 1
    # A number where a text belongs, as templates with variables make it.
    documents = emitted("--target", "pytorchjob", "--instance", "p5.48xlarge", "--nodes", 2, *COMMON)
    documents[-1]["spec"]["nprocPerNode"] = 8
    try:
        check(documents)
    except AssertionError:
        pass
    else:
        raise AssertionError("nprocPerNode: 8 is not found")
    assert planted > 100, planted
    print(f"{files} files are valid, {planted} wrong fields found")


main()
