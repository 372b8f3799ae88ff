"""Renders a kustomization: `resources`, `namespace`, `images`, JSON patches. Anything else is refused.

The tests compare it with `kubectl kustomize` where there is one.
"""

import copy
from pathlib import Path

import yaml

FIELDS = {"apiVersion", "kind", "namespace", "resources", "images", "patches"}
#: Kinds that are in no namespace.
CLUSTER_WIDE = {"Namespace"}


def render(folder: Path) -> list[dict]:
    """All objects of a kustomization, as `kubectl apply -k` would send them."""
    plan = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    if unknown := set(plan) - FIELDS:
        raise ValueError(f"{folder}: this renderer knows no {', '.join(sorted(unknown))}")
    objects = [item for name in plan["resources"] for item in _load((folder / name).resolve())]
    for patch in plan.get("patches", ()):
        hit = [item for item in objects if _is(item, patch["target"])]
        if not hit:
            raise ValueError(f"{folder}: nothing is {patch['target']}")
        for item in hit:
            for step in yaml.safe_load(patch["patch"]):
                _change(item, step)
    for item in objects:
        if "namespace" in plan:
            field = "name" if item["kind"] == "Namespace" else "namespace"
            item["metadata"][field] = plan["namespace"]
        for image in plan.get("images", ()):
            _name_images(item, image)
    return objects


def _load(path: Path) -> list[dict]:
    if path.is_dir():
        return render(path)
    # Deep copies: what YAML's anchors share must not be changed in two places at once.
    return [copy.deepcopy(_apart(item)) for item in yaml.safe_load_all(path.read_text(encoding="utf-8")) if item]


def _apart(value):
    if isinstance(value, dict):
        return {key: _apart(item) for key, item in value.items()}
    return [_apart(item) for item in value] if isinstance(value, list) else value


def _is(item: dict, target: dict) -> bool:
    if unknown := set(target) - {"kind", "name"}:
        raise ValueError(f"this renderer knows no {unknown} in targets")
    return item["kind"] == target["kind"] and item["metadata"]["name"] == target["name"]


def _change(item: dict, step: dict) -> None:
    """One operation of RFC 6902; `replace` needs what it replaces."""
    *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
    at = item
    for part in way:
        at = at[int(part)] if isinstance(at, list) else at[part]
    if step["op"] == "add" and isinstance(at, list):
        at.insert(len(at) if last == "-" else int(last), step["value"])
    elif step["op"] == "add" or (step["op"] == "replace" and isinstance(at, dict) and last in at):
        at[last] = step["value"]
    else:
        raise ValueError(f"{step['op']} {step['path']}: it is not there, or this renderer cannot do that")


def _name_images(value, image: dict) -> None:
    if isinstance(value, dict):
        for part in ("containers", "initContainers"):
            for container in value.get(part, ()):
                name = container["image"].rpartition(":")[0] or container["image"]
                if name == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _name_images(item, image)
