"""The manifests for Kubernetes: of the API's own shape, true to the program that they run, and that program at work."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import random
import re
import runpy
import signal
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jsonschema
import pytest
import yaml

from roster.client import FencedInstanceError
from roster.client.options import GroupMemberOptions
from roster.model.options import declared
from roster.testing.broker import running_broker
from tests.deploy import frozen_driver
from tests.deploy.frozen_driver import STEPS
from tests.librdkafka import idempotent_producer
from tests.real.realparts import installed
from tests.real.realparts.apache import free_ports
from tests.spark.programs import START_SECONDS, send, start
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

DEPLOY = Path(__file__).parents[2] / "deploy" / "kubernetes"
PROGRAM = DEPLOY / "program" / "totals.py"
PAGE = DEPLOY.parents[1] / "docs" / "how-to" / "run-on-kubernetes.md"
OF_THE_API = {"apps/v1", "v1", "policy/v1"}
OF_THE_POD = {"metadata.name": "totals-0", "status.podIP": "127.0.0.1"}
ROUNDS = int(os.environ.get("ROSTER_FENCE_ROUNDS", "1"))
TEXT, SOME = {"type": "string"}, {"type": "integer", "minimum": 1}
DEFAULTS = declared(GroupMemberOptions)


def manifests() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(DEPLOY.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if "kind" in document:  # else it configures Kustomize
                yield path.relative_to(DEPLOY), document


def check(manifest: dict[str, Any]) -> None:
    """Raise a ValueError for a field that the API does not know, lacks, or has of another type."""
    model = getattr(installed("kubernetes.client"), f"V1{manifest['kind']}")
    model.model_validate(manifest, by_alias=True, by_name=False)


def test_manifests_have_the_fields_and_types_of_the_api() -> None:
    checked = [manifest for _, manifest in manifests() if manifest["apiVersion"] in OF_THE_API]
    for manifest in checked:
        check(manifest)
    assert {manifest["kind"] for manifest in checked} == {"StatefulSet", "Service", "PodDisruptionBudget"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda spec: spec.update(replica=2), "replica"),
        (lambda spec: spec.update(replicas="2"), "replicas"),
        (lambda spec: spec.pop("selector"), "selector"),
        (lambda spec: spec["template"]["spec"]["containers"][0].pop("name"), "name"),
    ],
)
def test_what_the_api_refuses_is_found(change: Any, field: str) -> None:
    manifest = stateful_set()
    change(manifest["spec"])
    with pytest.raises(ValueError, match=rf"validation error[^\n]*\n\S*\b{field}"):
        check(manifest)


def fields(required: str, **known: Any) -> dict[str, Any]:
    """The schema of an object with these fields and no others."""
    return {"type": "object", "required": required.split(), "properties": known, "additionalProperties": False}


def many(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": item}


OPERATORS = {
    "ScaledObject": fields(
        "scaleTargetRef triggers",
        scaleTargetRef=fields("name", kind=TEXT, name=TEXT),
        minReplicaCount={"type": "integer", "minimum": 0},
        maxReplicaCount=SOME,
        cooldownPeriod=SOME,
        triggers=many(
            fields(
                "type metadata",
                type={"const": "kafka"},
                metadata=fields(
                    "bootstrapServers consumerGroup",
                    bootstrapServers=TEXT,
                    consumerGroup=TEXT,
                    topic=TEXT,
                    lagThreshold=TEXT,
                ),
            )
        ),
    ),
    "SparkApplication": fields(
        "type sparkVersion mainApplicationFile driver executor",
        type={"enum": ["Java", "Python", "R", "Scala"]},
        pythonVersion={"enum": ["2", "3"]},
        mode={"enum": ["cluster", "client"]},
        sparkVersion=TEXT,
        image=TEXT,
        mainApplicationFile=TEXT,
        restartPolicy=fields(
            "type",
            type={"enum": ["Never", "Always", "OnFailure"]},
            onFailureRetryInterval=SOME,
            onSubmissionFailureRetryInterval=SOME,
        ),
        driver=fields(
            "",
            cores=SOME,
            memory=TEXT,
            terminationGracePeriodSeconds=SOME,
            env=many(fields("name", name=TEXT, value=TEXT, valueFrom={"type": "object"})),
            configMaps=many(fields("name path", name=TEXT, path=TEXT)),
            secrets=many(fields("name path secretType", name=TEXT, path=TEXT, secretType={"const": "Generic"})),
        ),
        executor=fields("", instances=SOME),
    ),
}
"""The fields in use, as KEDA (v1alpha1) and Kubeflow's Spark operator (v1beta2) document them."""


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [manifest for _, manifest in manifests() if manifest["kind"] == kind]
    return found


@pytest.mark.parametrize("kind", OPERATORS)
def test_manifests_of_operators_have_the_fields_that_these_document(kind: str) -> None:
    jsonschema.validate(of_kind(kind)["spec"], OPERATORS[kind])


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("SparkApplication", lambda spec: spec["executor"].update(instances=0)),
        ("SparkApplication", lambda spec: spec.pop("executor")),
        ("SparkApplication", lambda spec: spec.update(pythonVersion=3)),
        ("ScaledObject", lambda spec: spec["triggers"][0]["metadata"].update(lagThreshold=50)),
        ("ScaledObject", lambda spec: spec.update(minReplicas=2)),
    ],
)
def test_what_an_operator_refuses_is_found(kind: str, change: Any) -> None:
    spec = of_kind(kind)["spec"]
    change(spec)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spec, OPERATORS[kind])


def test_kustomizations_name_files_that_exist() -> None:
    for path, manifest in manifests():
        if manifest["kind"] == "Kustomization":
            files = [name for generated in manifest.get("configMapGenerator", ()) for name in generated["files"]]
            for name in [*manifest.get("resources", ()), *manifest.get("configurations", ()), *files]:
                assert (DEPLOY / path.parent / name).exists(), (path, name)


def test_each_user_of_the_program_gets_it_by_its_generated_name() -> None:
    """The name has a hash, which Kustomize puts where it knows a ConfigMap to be named: in what is built together."""
    (generated,) = yaml.safe_load((DEPLOY / "program" / "kustomization.yaml").read_text())["configMapGenerator"]
    names = yaml.safe_load((DEPLOY / "spark-operator" / "names.yaml").read_text())["nameReference"]
    assert names == [
        {
            "kind": "ConfigMap",
            "version": "v1",
            "fieldSpecs": [{"kind": "SparkApplication", "path": "spec/driver/configMaps/name"}],
        }
    ]
    (mounted,) = of_kind("SparkApplication")["spec"]["driver"]["configMaps"]
    (volume,) = [each for each in stateful_set()["spec"]["template"]["spec"]["volumes"] if "configMap" in each]
    assert {mounted["name"], volume["configMap"]["name"]} == {generated["name"]}
    for folder in ("application", "spark-operator"):
        assert "../program" in yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text())["resources"]


def stateful_set() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "application" / "statefulset.yaml").read_text())
    return found


def container() -> dict[str, Any]:
    (found,) = stateful_set()["spec"]["template"]["spec"]["containers"]
    return dict(found)


def settings() -> dict[str, str]:
    """The environment of a pod `totals-0` on this machine."""
    known: dict[str, str] = {}
    for entry in container()["env"]:
        value = entry.get("value") or OF_THE_POD[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        known[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda name: known[name[1]], value)
    return known


def options() -> dict[str, ast.expr]:
    """The keyword arguments of `Pipeline(...)` in the program."""
    calls = [node for node in ast.walk(ast.parse(PROGRAM.read_text())) if isinstance(node, ast.Call)]
    (pipeline,) = [call for call in calls if getattr(call.func, "id", "") == "Pipeline"]
    return {keyword.arg: keyword.value for keyword in pipeline.keywords if keyword.arg}


def replaced() -> int:
    """The exit code of a replaced driver, as the program and the page say it."""
    (code,) = re.findall(r"^REPLACED = (\d+)$", PROGRAM.read_text(), re.MULTILINE)
    assert f"exit code {code}" in PAGE.read_text()
    return int(code)


def test_the_program_has_what_the_manifest_gives_it() -> None:
    asked = set(re.findall(r'os\.environ\["(\w+)"\]', PROGRAM.read_text()))
    pod = stateful_set()["spec"]["template"]["spec"]
    assert asked == settings().keys() - {"POD_IP"}
    mounts = {mount["mountPath"]: mount["name"] for mount in container()["volumeMounts"]}
    assert {settings()["STATE_DIR"], "/application"} <= mounts.keys()
    assert settings()["KAFKA_CLIENT"] == "/kafka/client.properties"
    (secret,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == mounts["/kafka"]]
    assert f"kubectl create secret generic {secret['secretName']} " in PAGE.read_text()
    (port,) = container()["ports"]
    # At 0.0.0.0 a pipeline with state asks for a token, which the probes have not got.
    assert settings()["HTTP"] == f"{OF_THE_POD['status.podIP']}:{port['containerPort']}"
    assert {container()[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")} == {
        port["name"]
    }
    grace, longest_batch = pod["terminationGracePeriodSeconds"] * 1000, ast.literal_eval(options()["max_batch_ms"])
    # The batch that SIGTERM meets, and its commit: as long as a request to a broker may take.
    assert grace >= longest_batch + DEFAULTS["request_timeout_ms"].default
    # A member that takes longer to give up its partitions is put out of the group.
    assert grace < DEFAULTS["rebalance_timeout_ms"].default


def test_what_scales_and_protects_it_names_it() -> None:
    found = {manifest["kind"]: manifest for _, manifest in manifests()}
    labels = stateful_set()["spec"]["template"]["metadata"]["labels"]
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    scaled = found["ScaledObject"]["spec"]
    assert scaled["scaleTargetRef"] == {"kind": "StatefulSet", "name": stateful_set()["metadata"]["name"]}
    read = scaled["triggers"][0]["metadata"]
    assert (read["consumerGroup"], [read["topic"]]) == tuple(
        ast.literal_eval(options()[name]) for name in ("group", "topics")
    )
    (broker,) = [manifest for path, manifest in manifests() if path == Path("broker", "service.yaml")]
    assert read["bootstrapServers"] == f"{broker['metadata']['name']}:{broker['spec']['ports'][0]['port']}"
    driver = found["SparkApplication"]["spec"]["driver"]
    assert {entry["name"] for entry in driver["env"]} == settings().keys()
    pod = stateful_set()["spec"]["template"]["spec"]
    (secret,) = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert driver["secrets"] == [{"name": secret, "path": "/kafka", "secretType": "Generic"}]
    assert driver["terminationGracePeriodSeconds"] == pod["terminationGracePeriodSeconds"]


def client_properties(folder: Path, bootstrap: str) -> str:
    file = folder / "client.properties"
    file.write_text(f"bootstrap.servers={bootstrap}\n")
    return str(file)


def test_that_it_was_replaced_is_the_last_line_of_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kubernetes shows the end of the log, and tasks of a JVM that stood still may complain when Spark has stopped."""
    stands_in = mock.MagicMock()
    spark = stands_in.return_value
    spark.stop.side_effect = lambda: print("WARN Executor: no heartbeat for 60 s", file=sys.stderr)
    replaced_by_other = FencedInstanceError("another one has `totals-0`")
    with mock.patch("roster.spark.session", stands_in), mock.patch("roster.spark.Pipeline") as pipeline:
        pipeline().json_columns().aggregate().write().run.side_effect = replaced_by_other
        for name, value in (settings() | {"KAFKA_CLIENT": client_properties(tmp_path, "127.0.0.1:9")}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(PROGRAM), run_name="__main__")
    assert ended.value.code == replaced()
    assert capsys.readouterr().err.splitlines()[-1] == f"this pod has been replaced: {replaced_by_other}"
    assert spark.mock_calls == [mock.call.sparkContext.setLogLevel("OFF"), mock.call.stop()]


class Pod:
    """The program as a pod runs it; every one has the same name, and a disk of its own."""

    def __init__(self, topics: Topics, folder: Path, number: int) -> None:
        (port,) = free_ports(1)
        self._log, self._page = folder / f"pod-{number}.log", f"http://127.0.0.1:{port}"
        self._freeze = folder / f"freeze-{number}"
        http = settings()["HTTP"].replace(":8080", f":{port}")
        client = client_properties(folder, topics.bootstrap)
        here = {"KAFKA_CLIENT": client, "HTTP": http, "STATE_DIR": str(folder / f"disk-{number}")}
        with self._log.open("w") as stream:
            environment = os.environ | settings() | here
            step = str(number % len(STEPS["kafka"]))
            program = [frozen_driver.__file__, "kafka", step, str(self._freeze), "", str(PROGRAM)]
            self.process = start([sys.executable, *program], stderr=stream, env=environment)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.said()
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._page}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def said(self) -> str:
        return self._log.read_text()

    def freeze(self) -> None:
        """Have it stand still at its step of the next batch."""
        self._freeze.touch()

    def is_frozen(self) -> bool:
        status = Path(f"/proc/{self.process.pid}/stat").read_text()
        return status.rpartition(")")[2].split()[0] == "T"

    def thaw(self) -> None:
        send(self.process, signal.SIGCONT)


@pytest.mark.spark
@pytest.mark.gate
@pytest.mark.timeout(900)
def test_of_two_drivers_with_one_identity_the_frozen_one_ends_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    """Each round a node stands still with its pod, amid a batch; the pod starts elsewhere; the old one wakes up."""
    chance = random.Random(int(os.environ.get("ROSTER_KILL_SEED", "1")))
    sent: Counter[str] = Counter()
    with running_broker() as broker, Topics(broker.bootstrap) as topics:
        for topic in ("orders", "totals-by-shop"):
            topics.admin.create_topic(topic, 4)
        pods = [Pod(topics, tmp_path, 0)]
        until(pods[0].is_ready, START_SECONDS, pods[0].said)
        for number in range(1, ROUNDS + 1):
            frozen = pods[-1]
            frozen.freeze()
            send_orders(topics, chance, sent)
            until(frozen.is_frozen, START_SECONDS, frozen.said)
            pods.append(Pod(topics, tmp_path, number))
            until(pods[-1].is_ready, START_SECONDS, pods[-1].said)
            send_orders(topics, chance, sent)
            frozen.thaw()
            assert frozen.process.wait(120) == replaced(), frozen.said()
            sentences = [line for line in frozen.said().splitlines() if line.startswith("this pod has been replaced: ")]
            assert sentences == frozen.said().splitlines()[-1:], frozen.said()
            assert "Traceback" not in frozen.said(), frozen.said()
        until(lambda: topics.committed("totals") == topics.ends("orders"), START_SECONDS, pods[-1].said)
        pods[-1].process.terminate()  # as the first process of a container passes it on
        assert pods[-1].process.wait(60) == 0
        totals = {
            json.loads(value)["shop"]: json.loads(value) for _, _, value in committed_records(topics, "totals-by-shop")
        }
    assert {shop: total["orders"] for shop, total in totals.items()} == sent
    assert {shop: total["revenue"] for shop, total in totals.items()} == {
        shop: 2.5 * count for shop, count in sent.items()
    }


def send_orders(topics: Topics, chance: random.Random, sent: Counter[str]) -> None:
    producer = idempotent_producer(topics.bootstrap, {"linger.ms": 5})
    for _ in range(500):
        shop = chance.choice(("Rome", "Oslo", "Lima", "Bern"))
        sent[shop] += 1
        producer.produce("orders", json.dumps({"shop": shop, "price": 2.5}), shop)
    assert producer.flush(60) == 0
