"""The Kubernetes manifest fits the operator that reads it, and the training that it starts."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Bake, environment

# What the training operator 1.x takes, from its TFJob schema, its webhook and its defaults.
TOP = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "successPolicy": ("", "AllWorkers"),
        "runPolicy": {"backoffLimit": int, "cleanPodPolicy": ("None", "Running", "All")},
        "tfReplicaSpecs": {
            "Worker": {
                "replicas": int,
                "restartPolicy": ("Always", "OnFailure", "Never", "ExitCode"),
                "template": {"spec": dict},
            }
        },
    },
}
POD = {
    "terminationGracePeriodSeconds": int,
    "shareProcessNamespace": bool,
    "nodeSelector": dict,
    "tolerations": list,
    "containers": list,
    "volumes": list,
}
CONTAINER = {
    **{"name": str, "image": str, "command": list, "args": list},
    **{"resources": {"requests": dict, "limits": dict}, "volumeMounts": list},
}
QUANTITY = re.compile(r"\d+(\.\d+)?([KMGTPE]i?|m)?")


def check(value: Any, schema: Any, where: str) -> None:
    """Every field is one that the schema has, with a value of its kind."""
    if isinstance(schema, dict):
        assert isinstance(value, dict) and set(value) <= set(schema), where
        for name in value:
            check(value[name], schema[name], f"{where}.{name}")
    elif isinstance(schema, tuple):
        assert value in schema, where
    else:
        assert type(value) is schema, where


def manifest_of(project: Path) -> dict[str, Any]:
    return yaml.safe_load((project / "kubernetes" / "train.yaml").read_text())


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]


def test_it_has_the_fields_of_a_tfjob(default_project: Path) -> None:
    manifest = manifest_of(default_project)
    check(manifest, TOP, "manifest")
    assert (manifest["apiVersion"], manifest["kind"]) == ("kubeflow.org/v1", "TFJob")
    pod = pod_of(manifest)
    check(pod, POD, "pod")
    (container,) = pod["containers"]
    check(container, CONTAINER, "container")
    assert container["name"] == "tensorflow"  # or the operator refuses the job
    # The operator sets them itself; twice, which one counts is left to chance.
    assert "env" not in container and "restartPolicy" not in pod
    quantities = [q for part in container["resources"].values() for q in part.values()]
    quantities += [volume["emptyDir"]["sizeLimit"] for volume in pod["volumes"][::2]]
    assert all(QUANTITY.fullmatch(str(quantity)) for quantity in quantities)
    # Kubernetes gives out whole GPUs, and takes them as a limit.
    assert isinstance(container["resources"]["limits"]["nvidia.com/gpu"], int)


def test_what_is_mounted_is_there_and_the_flags_name_it(default_project: Path) -> None:
    pod = pod_of(manifest_of(default_project))
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert mounts.keys() == volumes.keys()
    flags = dict(flag.removeprefix("--").split("=") for flag in container["args"])
    settings = default_project / "src" / "my_training_project" / "settings.py"
    known = set(re.findall(r"^    (\w+): \w+ = flag\(", settings.read_text(), re.MULTILINE))
    assert flags.keys() <= known
    assert container["command"][1:] == ["-m", "my_training_project.train"]
    assert (settings.parent / "train.py").is_file()
    assert flags["stage_to"] == mounts["scratch"] and "emptyDir" in volumes["scratch"]
    assert flags["run_dir"].startswith(mounts["shared"] + "/")
    assert "persistentVolumeClaim" in volumes["shared"]
    assert flags["strategy"] == "multi_worker"


def test_the_training_finds_its_hosts_in_the_operators_tf_config(default_project: Path) -> None:
    manifest = manifest_of(default_project)
    name = manifest["metadata"]["name"]
    replicas = manifest["spec"]["tfReplicaSpecs"]["Worker"]["replicas"]
    hosts = [f"{name}-worker-{index}.default.svc:2222" for index in range(replicas)]
    for index in range(replicas):
        # With one replica the operator sets none, and multi_worker would refuse to start.
        config = {
            "cluster": {"worker": hosts},
            "task": {"type": "worker", "index": index},
            "environment": "cloud",
        }
        code = (
            "from my_training_project.cluster import find_cluster as find; c = find(); "
            "print(c.index, *c.addresses)"
        )
        found = subprocess.run(
            [sys.executable, "-c", code],
            env=environment(
                PYTHONPATH=str(default_project / "src"),
                PYTHONDONTWRITEBYTECODE="1",
                TF_CONFIG=json.dumps(config),
            ),
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.split() == [str(index), *hosts]
    assert replicas > 1


@pytest.mark.parametrize("slug", ["a_b", "9lives", "0_" + "a" * 38])
def test_any_slug_gives_a_name_that_services_may_have(bake: Bake, slug: str) -> None:
    name = manifest_of(bake(project_slug=slug, package_name="some_package"))["metadata"]["name"]
    # A DNS label of RFC 1035, with room for what the operator puts behind it.
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)
    assert len(f"{name}-worker-999") <= 63
