"""The Kubernetes manifests, without a cluster: every field known, every name there, every command understood.

Nothing here says that they run: docs/how-to/run-on-kubernetes.md tells what was tried.
"""

import copy
import functools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from custom_kinds import SCHEMAS
from kustomized import CLUSTER_WIDE, render
from typer.main import get_command

from plait.cli.app import app
from plait.live.service.http.limits import HEALTH
from plait.live.service.options import read_options
from plait.live.supervisor import agent_keeper

kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate is not installed; pip install 'plait[dev]' brings it"
)
import jsonschema  # noqa: E402 - comes with kubernetes-validate

ROOT = Path(__file__).resolve().parents[3]
TREE = ROOT / "deploy" / "kubernetes"
FOLDERS = {"base": TREE / "base", "example": TREE / "overlays" / "example"}
#: Sidecars (init containers that go on) are on by default since 1.29; the newest schemas know all that this one does.
VERSION = "1.31"
#: What is not in the tree, and who makes it: Secrets with their keys (None: read as a whole), Services.
FROM_OUTSIDE = {
    "Secret": {"plait-postgres": None, "plait-metrics": {"token"}, "plait-ray": {"auth_token"}},
    "ConfigMap": {"plait-postgres-ca": {"ca.crt"}},
}
#: Programs of the image that are not plait.
SHELLS = {"/bin/sh", "/bin/bash"}


@pytest.fixture(autouse=True, scope="module")
def schemas_are_read_once():
    """A file of definitions has 1.5 MB, and the library reads it for every object."""
    utils = kubernetes_validate.utils
    plain, utils.schema_contents = utils.schema_contents, functools.cache(utils.schema_contents)
    yield
    utils.schema_contents = plain


@pytest.fixture(params=FOLDERS)
def objects(request) -> list[dict]:
    return render(FOLDERS[request.param])


@pytest.fixture
def base() -> list[dict]:
    return render(FOLDERS["base"])


def one(objects: list[dict], kind: str, name: str | None = None) -> dict:
    (found,) = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    return found


def ray_groups(cluster: dict) -> list[dict]:
    return [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]


def pods(objects: list[dict]) -> list[dict]:
    """Every pod there will be: the templates of Deployments and of the groups of RayClusters."""
    found = []
    for item in objects:
        holders = {"Deployment": lambda o: [o["spec"]], "RayCluster": ray_groups}.get(item["kind"], lambda o: [])(item)
        for holder in holders:
            metadata = {"name": item["metadata"]["name"], **holder["template"].get("metadata", {})}
            spec = holder["template"]["spec"]
            found.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return found


def containers(pod: dict) -> list[dict]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def check_schema(item: dict) -> None:
    """Raises jsonschema's ValidationError for a field that there is not, or that is of another type."""
    own = SCHEMAS.get((item["apiVersion"], item["kind"]))
    if own is None:
        kubernetes_validate.validate(item, VERSION, strict=True)
        return
    jsonschema.validate(item, own)
    for pod in pods([item]):
        kubernetes_validate.validate(pod, VERSION, strict=True)


def selects(selector: dict, labels: dict) -> bool:
    if set(selector) - {"matchLabels", "matchExpressions"}:
        raise ValueError(f"no selector: {selector}")
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and all(
        e["operator"] == "In" and labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", ())
    )


def chosen(objects: list[dict], selector: dict) -> list[dict]:
    return [pod for pod in pods(objects) if selects(selector, pod["metadata"]["labels"])]


# -- schema -------------------------------------------------------------------------------------------------------


def test_every_field_is_known(objects):
    for item in objects:
        check_schema(item)


@pytest.mark.parametrize(
    ("kind", "way", "wrong"),
    [
        ("Deployment", ("spec", "template", "spec", "containers", 0), "volumeMount"),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "readinessProbe"), "failureThreshhold"),
        ("NetworkPolicy", ("spec",), "ingresss"),
        ("PersistentVolumeClaim", ("spec",), "accessMode"),
        ("PodDisruptionBudget", ("spec",), "minAvailible"),
        ("RayCluster", ("spec",), "authOption"),
        ("RayCluster", ("spec", "workerGroupSpecs", 0), "minReplica"),
        ("RayCluster", ("spec", "workerGroupSpecs", 0, "template", "spec"), "terminationGracePeriodSecond"),
        ("ServiceMonitor", ("spec", "endpoints", 0), "bearer"),
    ],
)
def test_a_typing_mistake_is_found(base, kind, way, wrong):
    item = next(o for o in base if o["kind"] == kind)
    check_schema(item)
    at = item
    for part in way:
        at = at[part]
    at[wrong] = "1"
    with pytest.raises(jsonschema.ValidationError, match=wrong):
        check_schema(item)


def test_a_wrong_type_is_found(base):
    cluster, deployment = one(base, "RayCluster"), one(base, "Deployment")
    cluster["spec"]["workerGroupSpecs"][0]["replicas"] = "two"
    deployment["spec"]["replicas"] = "two"
    for item in (cluster, deployment):
        with pytest.raises(jsonschema.ValidationError, match="two"):
            check_schema(item)


# -- kustomize ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here to compare the test's renderer with")
@pytest.mark.parametrize("name", FOLDERS)
def test_the_renderer_agrees_with_kustomize(name):
    done = subprocess.run(
        ["kubectl", "kustomize", FOLDERS[name]], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr

    def by_name(objects):
        return {(o["kind"], o["metadata"]["name"]): o for o in objects}

    assert by_name(yaml.safe_load_all(done.stdout)) == by_name(render(FOLDERS[name]))


def test_a_tree_names_every_file(base):
    plan = yaml.safe_load((FOLDERS["base"] / "kustomization.yaml").read_text())
    assert {f.name for f in FOLDERS["base"].glob("*.yaml")} == {*plan["resources"], "kustomization.yaml"}
    names = [(o["kind"], o["metadata"]["name"]) for o in base]
    assert len(names) == len(set(names))


def test_overlays_say_namespace_and_image():
    objects = render(FOLDERS["example"])
    space = one(objects, "Namespace")["metadata"]["name"]
    assert {o["metadata"].get("namespace") for o in objects if o["kind"] not in CLUSTER_WIDE} == {space}
    assert {c["image"] for pod in pods(objects) for c in containers(pod)} == {"ghcr.io/example/plait:0.3.0-gpu"}
    assert one(objects, "PersistentVolumeClaim")["spec"]["storageClassName"] == "nfs-rwx"


@pytest.mark.parametrize("field", ["commonLabels", "patchesStrategicMerge"])
def test_the_renderer_refuses_what_it_does_not_know(tmp_path, field):
    (tmp_path / "kustomization.yaml").write_text(f"resources: []\n{field}: {{}}\n")
    with pytest.raises(ValueError, match=field):
        render(tmp_path)


# -- names --------------------------------------------------------------------------------------------------------


def check_names(objects: list[dict]) -> None:
    """Raises LookupError for a Secret, claim, account, volume, port or selection that leads nowhere."""
    there = {(o["kind"], o["metadata"]["name"]) for o in objects}
    outside = {(kind, name) for kind, names in FROM_OUTSIDE.items() for name in names}

    def need(kind: str, name: str, key: str | None = None) -> None:
        if (kind, name) not in there | outside:
            raise LookupError(f"no {kind} {name}")
        keys = FROM_OUTSIDE["Secret"].get(name) if kind == "Secret" else None
        if key is not None and (keys is None or key not in keys):
            raise LookupError(f"no key {key} in {kind} {name}")

    for pod in pods(objects):
        need("ServiceAccount", pod["spec"]["serviceAccountName"])
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                need("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
            if "configMap" in volume:
                need("ConfigMap", volume["configMap"]["name"])
        for container in containers(pod):
            _check_container(container, volumes, need)
    for item in objects:
        _check_selections(item, objects, need)


def _check_container(container: dict, volumes: dict, need) -> None:
    for mount in container["volumeMounts"]:
        if mount["name"] not in volumes:
            raise LookupError(f"no volume {mount['name']}")
    ports = {port["name"] for port in container.get("ports", ())}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        for kind in ("tcpSocket", "httpGet"):
            port = container.get(probe, {}).get(kind, {}).get("port")
            if port is not None and port not in ports:
                raise LookupError(f"{probe}: no port {port}")
    for source in container.get("envFrom", ()):
        need("Secret", source["secretRef"]["name"])
    for variable in container.get("env", ()):
        secret = variable.get("valueFrom", {}).get("secretKeyRef")
        if secret:
            need("Secret", secret["name"], secret["key"])
    known = {variable["name"] for variable in container.get("env", ())}
    for word in [*container.get("command", ()), *container.get("args", ())]:
        for name in re.findall(r"\$\((\w+)\)", word):
            if name not in known:
                raise LookupError(f"no variable {name}")


def _check_selections(item: dict, objects: list[dict], need) -> None:
    spec, kind = item.get("spec", {}), item["kind"]
    ports = [(spec.get("selector"), port["targetPort"]) for port in spec.get("ports", ())] if kind == "Service" else []
    if kind == "NetworkPolicy":
        rules = list(spec.get("ingress", ()))
        peers = [peer["podSelector"] for rule in rules for peer in rule["from"] if "podSelector" in peer]
        for selector in [spec["podSelector"], *peers]:
            if not chosen(objects, selector):
                raise LookupError(f"NetworkPolicy {item['metadata']['name']}: no pod is {selector}")
        ports = [(spec["podSelector"]["matchLabels"], p["port"]) for rule in rules for p in rule.get("ports", ())]
    if kind in ("Deployment", "PodDisruptionBudget") and not chosen(objects, spec["selector"]):
        raise LookupError(f"{kind}: no pod is {spec['selector']}")
    for labels, port in ports:
        hit = chosen(objects, {"matchLabels": labels})
        if not hit or any(port not in {p["name"] for c in containers(pod) for p in c.get("ports", ())} for pod in hit):
            raise LookupError(f"{kind}: no port {port} in the pods {labels}")
    if kind == "ServiceMonitor":
        services = [o for o in objects if o["kind"] == "Service" and selects(spec["selector"], o["metadata"]["labels"])]
        for endpoint in spec["endpoints"]:
            if not any(endpoint["port"] == port["name"] for s in services for port in s["spec"]["ports"]):
                raise LookupError(f"ServiceMonitor: no port {endpoint['port']}")
            credentials = endpoint["authorization"]["credentials"]
            need("Secret", credentials["name"], credentials["key"])


def test_every_name_leads_somewhere(objects):
    check_names(objects)
    cluster = one(objects, "RayCluster")["metadata"]["name"]
    assert cluster in FROM_OUTSIDE["Secret"]  # the operator gives the Secret the cluster's name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("claimName: plait-home", "claimName: plait-hom"),
        ("name: plait-postgres\n", "name: plait-postgre\n"),
        ("name: plait-postgres-ca", "name: plait-postgres-cert"),
        ("key: auth_token", "key: auth-token"),
        ("serviceAccountName: plait", "serviceAccountName: plaid"),
        ("mountPath: /srv/plait\n          name: home", "mountPath: /srv/plait\n          name: hom"),
        ("--host=$(POD_IP)", "--host=$(POD_IPS)"),
        ("--name=$(POD_NAME)", "--name=$(POD)"),
        ("targetPort: api", "targetPort: http"),
        ("values:\n      - ray-head", "values:\n      - ray-heat"),
        ("port: api\n", "port: metrics\n"),
    ],
)
def test_a_name_that_leads_nowhere_is_found(base, old, new):
    text = "---\n".join(yaml.safe_dump(item) for item in base)
    assert old in text
    check_names(list(yaml.safe_load_all(text)))
    broken = text.replace(old, new)
    if "ray-heat" in new:  # one of the names in a list may be wrong, if all are nothing is left
        broken = broken.replace("- ray-worker\n", "- ray-walker\n")
    with pytest.raises(LookupError):
        check_names(list(yaml.safe_load_all(broken)))


# -- commands -----------------------------------------------------------------------------------------------------


def parse_plait(words: list[str]) -> dict:
    """What plait's own command line makes of the words; raises click's UsageError for what it does not know."""
    command, rest = get_command(app), list(words)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return command.make_context("plait", rest).params


def parse(words: list[str]) -> dict:
    """The options of a command of plait, by whichever of its parsers has to understand them."""
    if words[0] == "plait":
        return parse_plait(words[1:])
    parsers = {"plait.live.service": read_options, "plait.live.supervisor.agent_keeper": agent_keeper.read_options}
    return vars(parsers[words[2]](words[3:]))


def commands_of_plait(pod: dict) -> list[list[str]]:
    """`plait ...` and `python -m plait...` in the containers and hooks of a pod."""
    found = []
    for container in containers(pod):
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
        for words in ([*container.get("command", ()), *container.get("args", ())], hook):
            if words and words[0] in SHELLS:
                words = words[-1].split()
            if words[:1] == ["plait"] or words[:2] == ["python", "-m"]:
                found.append([word.replace('"', "") for word in words])
    return found


def of(objects: list[dict], component: str) -> dict:
    (pod,) = [p for p in pods(objects) if p["metadata"]["labels"]["app.kubernetes.io/component"] == component]
    return pod


def test_plait_knows_all_its_options(objects):
    found = {part: commands_of_plait(of(objects, part)) for part in ("scheduler", "ray-head", "ray-worker")}
    ((serve,), (keep,), (leave,)) = ([parse(words) for words in commands] for commands in found.values())
    assert (serve["standby"], serve["insecure"], serve["db"]) == (True, True, "postgresql://")
    assert serve["backend"] == keep["backend"] == "ray"
    assert serve["home"] == keep["home"] == leave["home"]
    assert leave["wait"].endswith("s")


@pytest.mark.parametrize("part", ["scheduler", "ray-head", "ray-worker"])
def test_an_option_that_plait_does_not_know_is_found(base, part, capsys):
    (words,) = commands_of_plait(of(base, part))
    parse(words)
    try:
        parse([*words, "--forground"])
    except SystemExit:
        said = capsys.readouterr().err
    except Exception as error:  # the class of typer's own copy of click
        said = str(error)
    else:
        said = "nothing"
    assert re.search("(No such option|unrecognized arguments): --forground", said), said


def test_ports_and_folders_are_the_same_everywhere(objects):
    pod = of(objects, "scheduler")
    (words,) = commands_of_plait(pod)
    start = parse(words)
    port, agents = pod["spec"]["containers"][0]["ports"]
    assert start["agent_port"] == agents["containerPort"] != port["containerPort"]
    assert start["port"] == port["containerPort"] == one(objects, "Service")["spec"]["ports"][0]["port"]
    for pod in pods(objects):
        for container in pod["spec"]["containers"]:
            mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
            assert mounts.get("home", start["home"]) == start["home"], "all must see the home folder under one path"
        assert any(m["name"] == "home" for c in pod["spec"]["containers"] for m in c["volumeMounts"])


def test_only_who_leads_is_ready(objects):
    spec = one(objects, "Deployment")["spec"]
    assert spec["replicas"] == 2
    (container,) = spec["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == HEALTH
    assert "httpGet" not in container["livenessProbe"], "who stands by answers 503, and must not be killed for it"


def test_a_rollout_replaces_the_standby_and_leaves_the_leader(objects):
    spec = one(objects, "Deployment")["spec"]
    how = spec["strategy"]["rollingUpdate"]
    assert spec["replicas"] - how["maxUnavailable"] == 1, "all that are ready: the leader goes when somebody deletes it"
    assert how["maxSurge"] == 1
    (container,) = spec["template"]["spec"]["containers"]
    assert "preStop" not in container.get("lifecycle", {}), "nobody is reached while a leader that ends waits"


# -- what must hold for Ray, for jobs and for security --------------------------------------------------------------


def test_what_the_operator_refuses(objects):
    cluster = one(objects, "RayCluster")
    spec = cluster["spec"]
    assert len(cluster["metadata"]["name"]) <= 50
    assert spec["authOptions"]["mode"] == "token"
    assert tuple(map(int, spec["rayVersion"].split(".")[:2])) >= (2, 52), "tokens need 2.52"
    for group in ray_groups(cluster):
        assert "labels" not in group["rayStartParams"], "KubeRay refuses labels there"
        assert not {k for k in group["template"]["metadata"]["labels"] if k.startswith("ray.io/")}
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    tag = re.search(r"^ARG RAY_TAG=(\S+)", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    assert tag[1].startswith(f"{spec['rayVersion']}-"), "the operator's and the image's Ray are of one version"


def test_jobs_have_time_for_a_checkpoint(objects):
    workers = of(objects, "ray-worker")
    (leave,) = commands_of_plait(workers)
    wait_s = float(parse(leave)["wait"].removesuffix("s"))
    assert read_options([]).grace_s < wait_s < workers["spec"]["terminationGracePeriodSeconds"]


def test_drains_go_one_worker_after_another(objects):
    replicas = one(objects, "RayCluster")["spec"]["workerGroupSpecs"][0]["replicas"]
    assert one(objects, "PodDisruptionBudget")["spec"]["minAvailable"] == replicas - 1


def test_pods_have_no_rights(objects):
    assert not [o["kind"] for o in objects if o["kind"].endswith(("Role", "RoleBinding"))]
    assert one(objects, "ServiceAccount")["automountServiceAccountToken"] is False
    for pod in pods(objects):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(pod):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]


def test_who_reaches_whom(objects):
    policies = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "NetworkPolicy"}
    everyone = pods(objects)
    assert chosen(objects, policies["plait-closed"]["podSelector"]) == everyone
    assert "ingress" not in policies["plait-closed"]
    (ray,) = policies["plait-ray"]["ingress"]
    assert all(set(peer) == {"podSelector"} for peer in ray["from"]), "nobody of another namespace"
    api, of_agents = policies["plait-api"]["ingress"]
    others = [peer["namespaceSelector"] for peer in api["from"] if "namespaceSelector" in peer]
    assert others == [{"matchLabels": {"plait/client": "true"}}], (
        "a namespace that nobody names may be called otherwise"
    )
    (agents,) = [peer["podSelector"] for peer in api["from"] if "podSelector" in peer]
    assert chosen(objects, agents) == [pod for pod in everyone if pod["metadata"]["name"] == "plait-ray"]
    assert chosen(objects, policies["plait-ray"]["podSelector"]) == chosen(objects, agents)
    assert [port["port"] for port in api["ports"]] == ["api"]
    assert [port["port"] for port in of_agents["ports"]] == ["agents"]
    assert of_agents["from"] == [{"podSelector": agents}]
    (scheduler,) = chosen(objects, policies["plait-api"]["podSelector"])
    assert scheduler["metadata"]["labels"]["app.kubernetes.io/component"] == "scheduler"


def test_the_image_is_built_of_files_that_there_are():
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    assert copied
    assert all((ROOT / name).exists() for names in copied for name in names.split())


def test_patches_of_an_overlay_leave_the_base_alone(base):
    before = copy.deepcopy(base)
    render(FOLDERS["example"])
    assert render(FOLDERS["base"]) == before
