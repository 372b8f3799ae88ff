"""State of models and optimizers that their `state_dict` leaves out, and changes of their structure during training.

    part                                      after a resume
    buffers with persistent=False             restored in place
    requires_grad of parameters               restored
    gradients that no step has used yet       restored; those of optimizers that have not stepped lately
    added parameter groups                    added again, if their parameters are those of registered models
    a model whose parameters were replaced    cannot be loaded, so nothing is written and the older checkpoint stays

A model's parameters are replaced by pruning and by adapters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from plait.core.errors import PlaitError


class NotRestorable(PlaitError):
    """The present state cannot be loaded by a new process: a model has changed, or an order cannot be repeated."""


def layout_of(value: Any) -> tuple[Any, ...]:
    """The names of all saved state of a model, or the parameters of each group of an optimizer; () of other values."""
    if hasattr(value, "named_modules") and hasattr(value, "named_buffers"):
        loose = {name for name, _ in _loose_buffers(value)}
        named = [name for name, _ in (*value.named_parameters(), *value.named_buffers())]
        return tuple(sorted(name for name in named if name not in loose))
    return tuple(len(group["params"]) for group in getattr(value, "param_groups", ()))


def check_layout(name: str, value: Any, before: tuple[Any, ...], parameters: Mapping[str, Any]) -> None:
    """Raise `NotRestorable` if a new process, whose `value` has the layout `before`, could not load its state.

    `parameters`: those of the registered models by name.
    """
    now = layout_of(value)
    if now == before:
        return
    if hasattr(value, "param_groups"):
        known = {id(parameter) for parameter in parameters.values()}
        unknown = sum(id(p) not in known for group in value.param_groups for p in group["params"])
        fewer = len(now) < len(before) or any(n < b for n, b in zip(now, before, strict=False))
        why = f"{unknown} of its parameters are of no registered model" if unknown else "it has fewer parameters"
        if not unknown and not fewer:
            return
    else:
        new, gone = [n for n in now if n not in before], [n for n in before if n not in now]
        why = ", ".join(f"{len(names)} {what} ({names[0]})" for names, what in ((new, "new"), (gone, "gone")) if names)
    raise NotRestorable(
        f"the parameters of {name!r} are not those with which it was registered: {why}; a new process could not load "
        "them. Change the model (pruning, adapters) before attach(), and register all models whose parameters an "
        "optimizer steps"
    )


def parameters_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of the registered models, by the names of the model and of the parameter in it."""
    models = {name: value for name, value in values.items() if hasattr(value, "named_parameters")}
    return {f"{name}/{inner}": p for name, model in models.items() for inner, p in model.named_parameters()}


def extras_of(value: Any, parameters: Mapping[str, Any], stepped: Collection[Any]) -> dict[str, Any]:
    """What the `state_dict` of a model or optimizer leaves out.

    `stepped`: optimizers that have used their gradients since the last boundary.
    """
    if hasattr(value, "named_modules") and hasattr(value, "named_buffers"):
        frozen = [name for name, parameter in value.named_parameters() if not parameter.requires_grad]
        return {"buffers": dict(_loose_buffers(value)), "frozen": frozen}
    if not hasattr(value, "param_groups"):
        return {}
    names = {id(parameter): name for name, parameter in parameters.items()}
    groups = [[names.get(id(p), "") for p in group["params"]] for group in value.param_groups]
    gradients = [[p.grad for p in group["params"]] for group in value.param_groups]
    left = getattr(value, "optimizer", value) not in stepped and any(
        gradient is not None for group in gradients for gradient in group
    )
    return {"groups": groups, "gradients": gradients if left else []}


def prepare(value: Any, extras: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Add the parameters that an optimizer had at the checkpoint, before its state is loaded."""
    groups = extras.get("groups", [])
    if not hasattr(value, "param_groups") or any(name not in parameters for group in groups for name in group):
        return
    added: set[int] = set()
    for number, names in enumerate(groups):
        here = value.param_groups[number]["params"] if number < len(value.param_groups) else []
        missing = [parameters[name] for name in names if all(parameters[name] is not p for p in here)]
        if missing and here:
            here.extend(missing)
        elif missing:
            value.add_param_group({"params": missing})
        added |= {id(parameter) for parameter in missing}
    if added:
        # Let the script add the same groups: it does so in the epoch that it repeats in part
        add = value.add_param_group

        def add_param_group(group: Any) -> None:
            given = group["params"]
            given = [given] if hasattr(given, "requires_grad") else list(given)
            if given and all(id(parameter) in added for parameter in given):
                added.difference_update(id(parameter) for parameter in given)
            else:
                add({**group, "params": given})

        value.add_param_group = add_param_group


def put_back(value: Any, extras: Mapping[str, Any]) -> None:
    """Restore what `extras_of` returned, after the state is loaded."""
    buffers = extras.get("buffers", {})
    for name, buffer in _loose_buffers(value) if buffers else ():
        if name in buffers:
            if buffer.shape == buffers[name].shape:
                buffer.copy_(buffers[name])
            else:
                owner, _, last = name.rpartition(".")
                value.get_submodule(owner)._buffers[last] = buffers[name].to(buffer.device)
    if "frozen" in extras:
        for name, parameter in value.named_parameters():
            if parameter.requires_grad == (name in extras["frozen"]):
                parameter.requires_grad_(name not in extras["frozen"])
    for group, gradients in zip(getattr(value, "param_groups", ()), extras.get("gradients", []), strict=False):
        for parameter, gradient in zip(group["params"], gradients, strict=False):
            if gradient is not None:
                parameter.grad = gradient.to(parameter.device, copy=True)


def _loose_buffers(model: Any) -> Iterator[tuple[str, Any]]:
    """The buffers of a model that are not part of its `state_dict`, by name."""
    for prefix, module in model.named_modules():
        for name in sorted(getattr(module, "_non_persistent_buffers_set", ())):
            if (buffer := module._buffers.get(name)) is not None:
                yield f"{prefix}.{name}" if prefix else name, buffer
