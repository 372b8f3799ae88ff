"""JSON Schemas of the two kinds that are not Kubernetes' own, as far as the manifests use them: ours, not the CRDs'.

Field names and types are those of the KubeRay and Prometheus operator API references. Pod templates in a RayCluster are
not described here: they are checked as pods, by Kubernetes' own schema.
"""

TEXT, NUMBER = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: tuple[str, ...] = (), **fields) -> dict:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": fields}


def _kind(version: str, kind: str, spec: dict) -> dict:
    metadata = _object(("name",), name=TEXT, namespace=TEXT, labels=TEXTS, annotations=TEXTS)
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": version}, kind={"const": kind}, metadata=metadata, spec=spec,
    )  # fmt: skip


_GROUP = {
    "rayStartParams": TEXTS,
    "template": _object(("spec",), metadata=_object(labels=TEXTS), spec={"type": "object"}),
}
_RAY = _object(
    ("headGroupSpec", "rayVersion"),
    rayVersion=TEXT,
    authOptions=_object(("mode",), mode={"enum": ["token", "disabled"]}),
    headGroupSpec=_object(
        ("template",), serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]}, **_GROUP
    ),
    workerGroupSpecs={
        "type": "array",
        "items": _object(
            ("groupName", "minReplicas", "maxReplicas", "template"),
            groupName=TEXT, replicas=NUMBER, minReplicas=NUMBER, maxReplicas=NUMBER, **_GROUP,
        ),
    },
)  # fmt: skip
_SECRET_KEY = _object(("name", "key"), name=TEXT, key=TEXT)
_MONITOR = _object(
    ("selector", "endpoints"),
    selector=_object(matchLabels=TEXTS),
    endpoints={
        "type": "array",
        "minItems": 1,
        "items": _object(
            port=TEXT,
            path={"type": "string", "pattern": "^/"},
            interval={"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
            authorization=_object(type=TEXT, credentials=_SECRET_KEY),
        ),
    },
)

SCHEMAS = {
    ("ray.io/v1", "RayCluster"): _kind("ray.io/v1", "RayCluster", _RAY),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _kind("monitoring.coreos.com/v1", "ServiceMonitor", _MONITOR),
}
