"""Measurements and workloads in the form of the released files, made from formulas: no test needs the real ones."""

from itertools import product
from pathlib import Path

from plait_papers.pollux.tables import APPLICATIONS, Application, Placement, canonical


def step_s(placement: Placement, local: float) -> tuple[float, float]:
    """Seconds of a step and of its synchronisation."""
    gpus = sum(placement)
    sync_s = 0.001 if gpus == 1 else (0.02 if len(placement) == 1 else 0.1) + 0.002 * (gpus - 2)
    return 0.05 + 0.001 * local + sync_s, sync_s


def write_measurements(folder: Path, *names: str, iterations: int = 200) -> Path:
    """Write `folder/<name>/*.csv` for the named applications (all by default), so long an epoch."""
    for name in names or APPLICATIONS:
        model = APPLICATIONS[name]
        (folder / name).mkdir(parents=True)
        _write_steps(folder / name, model)
        for i, batch in enumerate(model.batches):
            lines = ["progress,iteration,metric,grad_sqr,grad_var"]
            for epoch in range(model.epochs):
                done = iterations * (epoch + 1)
                lines.append(f"{done + i},{done * model.initial / batch + epoch},0,1.0,{1 + epoch + i}")
            _write(folder / name / f"validation-{batch}.csv", lines)
    return folder


def _write_steps(folder: Path, model: Application) -> None:
    sizes = [model.least_local, model.initial, 2 * model.most_local]
    rings = {canonical(p) for nodes in range(1, 5) for p in product(range(1, 5), repeat=nodes)}
    lines = ["placement,local_bsz,step_time,sync_time"]
    for ring in sorted(rings):
        digits = "".join(map(str, ring))
        lines += ["{},{},{!r},{!r}".format(digits, size, *step_s(ring, size)) for size in sorted(set(sizes))]
    _write(folder / "placements.csv", lines)
    lines = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    for nodes in (6, 8, 12, 16):
        for per_node, size in product((1, 2, 4), sorted(set(sizes))):
            times = step_s((per_node,) * nodes, size)
            lines.append("{},{},{},{!r},{!r}".format(nodes, nodes * per_node, size, *times))
    _write(folder / "scalability.csv", lines)


def write_workload(path: Path, *rows: tuple[int, str, int, int]) -> Path:
    """Rows of (time, application, GPUs, batch); names are made."""
    lines = ["name,time,application,num_replicas,batch_size"]
    lines += [f"{name}-{i},{time},{name},{gpus},{batch}" for i, (time, name, gpus, batch) in enumerate(rows)]
    _write(path, lines)
    return path


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
