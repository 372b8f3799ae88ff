"""Pages of the reference written from the code at each build: command line, options, policies, metrics, ..."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import MISSING
from typing import Any

import typer
from docstrings import markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from plait.cli.app import app
from plait.core.errors import PlaitError
from plait.core.options import declared
from plait.live.protocol.job import Batch, Job, Profile, key_of
from plait.live.service.options import ServiceOptions
from plait.network.topology.cluster_file import LinkTable, NodesTable, SwitchTable
from plait.network.topology.shapes import SHAPES
from plait.policies.catalog import CATALOG, citations
from plait.report.metrics import METRICS
from plait.sim.published import published_names, published_world
from plait.sim.world import WORLDS, make_world
from plait.traces.formats.registry import FORMATS
from plait.traces.schema import JOB_COLUMNS, NODE_COLUMNS
from plait.traces.synthetic import ADAPTIVE, PRESETS

POLICIES_INTRO = """
Written from the catalog; `plait policies` prints the same. An option follows the name:
`tiresias-l:thresholds=3250/7200,knob=8`. *Knows* is what the policy knows about jobs.
Every policy takes `quota`, too: GPUs of projects, in all or by kind, such as `fifo:quota=vision=32/speech@v100=16/*=8`.
"""
OPTIONS_INTRO = """
Written from the declarations of which the parsers are made. `plait submit --schema` prints the JSON Schema of
a job file; [submit jobs](../how-to/submit-jobs.md) has examples.
"""
CLUSTER_FILE_INTRO = """
Written from the declarations of which the reader is made. [Describe a network](../how-to/describe-a-network.md) has
examples. `nodes` is a text as `--cluster` takes it (`nodes = "16x8@4"`) or one table `[[nodes]]` for each kind of node.
`[network]` is optional: with `topology` it is built, and `[[network.switches]]` and `[[network.links]]` change switches
by `id` and links by `ends`; without, these tables list all switches and links.
"""
SUMMARY_ALSO = """
A summary also has the labels of the run (`trace`, `policy`, `world`, `seed`, `cluster` and the settings), the counts
`jobs`, `finished`, `failed`, `cancelled`, `refused`, `unfinished`, `failures` and `restarts`, and `gpus`, `span_s`,
`window`, `percentile_rule`, `events` and `wall_s`. Unknown figures are `null` in JSON and empty in CSV.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for make in (cli, options, cluster_file, policies, metrics, traces, worlds):
        files.append(File.generated(config, f"reference/{make.__name__}.md", content=make()))
    return files


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table; cells may hold anything."""
    lines = [list(head), *(list(row) for row in rows)]
    text = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    text.insert(1, ["---"] * len(text[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in text) + "\n"


def code(value: object) -> str:
    """Inline code; nothing for nothing."""
    return f"`{value}`" if value not in ("", None) else ""


def policies() -> str:
    """One section a policy of the catalog."""
    out = [
        "# Policies",
        "",
        POLICIES_INTRO,
        "",
        table(
            ("policy", "knows", "what it does"),
            ((f"[`{name}`](#{name})", row.knows, row.summary) for name, row in CATALOG.items()),
        ),
    ]
    for name, row in CATALOG.items():
        out += [f"## `{name}` {{ #{name} }}", "", f"{row.summary[0].upper()}{row.summary[1:]}. Knows: {row.knows}.", ""]
        made = row.make()
        explained = [made, getattr(made, "order", None)]
        for part in explained:
            kind = part if inspect.isfunction(part) else type(part)
            if part is not None and kind.__name__ != "Composed" and kind.__doc__:
                out += [markdown(inspect.cleandoc(kind.__doc__)), ""]
        if row.options:
            meanings = ((code(name), option.help, option.takes) for name, option in row.options.items())
            out += [table(("option", "meaning", "takes"), meanings), ""]
        else:
            out += ["No options.", ""]
        for what, extra in row.needs.items():
            out += [f"{code(what) or 'It'} needs `pip install 'plait[{extra}]'`.", ""]
        found = citations(name)
        if found:
            out += ["Cite:", "", "```bibtex", *found, "```", ""]
    return "\n".join(out)


def metrics() -> str:
    """Every figure of a summary and of the tables."""
    import plait.control.metrics as code_of_metrics

    ways = {"low": "lower", "high": "higher", "": ""}
    conventions = inspect.cleandoc(code_of_metrics.__doc__ or "").partition("Conventions, once for all figures:")[2]
    return "\n".join(
        [
            "# Metrics",
            "",
            "One module computes every figure, from the record of the run, so simulated and replayed runs agree.",
            "",
            "```text",
            inspect.cleandoc(conventions),
            "```",
            "",
            table(
                ("key in JSON and CSV", "label", "better", "what it is"),
                ((code(m.key), m.label, ways[m.better], m.meaning) for m in METRICS),
            ),
            "",
            SUMMARY_ALSO,
            "",
        ]
    )


def traces() -> str:
    """Formats, the canonical columns, the generator's presets."""
    columns = ("column", "type", "may be empty", "meaning")
    presets = {name: preset.source for name, preset in PRESETS.items()}
    presets[ADAPTIVE] = "jobs that adapt their batch, with Pollux's mix of models (OSDI'21); without durations"
    return "\n".join(
        [
            "# Traces",
            "",
            "## Formats",
            "",
            "The format is recognised by the header; `--format` names it where that is not possible.",
            "",
            table(
                ("format", "units", "published as", "licence"),
                ((code(f.name), f.units, f.source, f.licence) for f in FORMATS.values()),
            ),
            "",
            "## The canonical form: jobs",
            "",
            "CSV or Parquet, units in the names of the columns. `x_...` columns are kept and never interpreted.",
            "",
            table(columns, ((code(c.name), c.kind, "yes" if c.nullable else "no", _meaning(c)) for c in JOB_COLUMNS)),
            "",
            "## The canonical form: nodes",
            "",
            table(columns, ((code(c.name), c.kind, "yes" if c.nullable else "no", _meaning(c)) for c in NODE_COLUMNS)),
            "",
            "## Presets of the generator",
            "",
            table(("preset", "where its numbers come from"), ((code(n), source) for n, source in presets.items())),
            "",
        ]
    )


def _meaning(column: Any) -> str:
    return column.doc + (": " + ", ".join(f"`{v}`" for v in column.enum) if column.enum else "")


def worlds() -> str:
    """The truth of each world."""
    out = [
        "# Worlds",
        "",
        "A world is everything in a simulation that is not the policy: physics, overheads, failures.",
        "",
    ]
    for name in WORLDS:
        world = make_world(name)
        out += [f"## `{name}`", "", f"{world.summary[0].upper()}{world.summary[1:]}.", ""]
        rows = [
            ("decisions", "at every event" if world.round_s == 0 else f"every {world.round_s:g} s"),
            ("physics", code(repr(world.physics))),
            ("overheads", world.overheads.label),
            ("periodic checkpoint", f"every {world.checkpoint_every_s:g} s of running"),
            ("mean time between failures of a node", f"{world.node_mtbf_s:g} s"),
            ("mean time between failures of a job", f"{world.job_mtbf_s:g} s"),
            ("profile noise", f"{world.profile_noise:g}"),
        ]
        out += [table(("what", "value"), rows), ""]
    for name in published_names():
        theirs = published_world(name)
        out += [f"## `{name}`", "", f"{theirs.summary}. It has policies of its own:", ""]
        out += [table(("policy", "what it is"), ((code(k), v) for k, v in theirs.policies.items())), ""]
        out += [table(("option", "meaning"), ((code(k), v) for k, v in theirs.options.items())), ""]
    return "\n".join(out)


def cli() -> str:
    """Every command, its arguments and options."""
    codes = [
        ("0", "done"),
        ("1", "unexpected: a bug, or out of memory"),
        *_exit_codes(),
        ("130", "interrupted by Ctrl-C"),
    ]
    out = ["# Command line", "", "Exit codes:", "", table(("code", "meaning"), codes), ""]
    root = typer.main.get_command(app)
    out += list(_command(root, "plait"))
    return "\n".join(out)


def options() -> str:
    """The fields of a job file, and the options of a service that is started by hand."""
    head = ("name", "meaning", "unit", "default")
    out = ["# Job files and services", "", OPTIONS_INTRO, ""]
    for title, kind, name in (
        ("Fields of a job", Job, key_of),
        ("`batch` of a job", Batch, key_of),
        ("`profile` of a job", Profile, key_of),
        ("`python -m plait.live.service`", ServiceOptions, lambda one: f"--{one.word}"),
    ):
        rows = ((code(name(one)), _said(one.option), one.unit, _default(one)) for one in declared(kind))
        out += [f"## {title}", "", table(head, rows), ""]
    return "\n".join(out)


def cluster_file() -> str:
    """The tables of a cluster file, and the topologies of `--network`."""
    head = ("name", "meaning", "default")
    out = ["# Cluster files and topologies", "", CLUSTER_FILE_INTRO, ""]
    kinds = {"`[[nodes]]`": NodesTable, "`[[network.switches]]`": SwitchTable, "`[[network.links]]`": LinkTable}
    kinds |= {f'`[network]` with `topology = "{name}"`, or `--network {name}`': SHAPES[name] for name in SHAPES}
    for title, kind in kinds.items():
        rows = ((code(one.name), one.option.help, _default(one) or code("0")) for one in declared(kind))
        out += [f"## {title}", "", (kind.__doc__ or "").partition("\n")[0], "", table(head, rows), ""]
    return "\n".join(out)


def _said(told: Any) -> str:
    return f"{told.help}. {getattr(told, 'more', '')}".strip()


def _default(one: Any) -> str:
    if one.option.unset or one.default is MISSING:
        return str(one.option.unset or "has to be given")
    return "" if one.default in (None, False, ()) else code(one.default)


def _exit_codes() -> list[tuple[str, str]]:
    found: dict[int, list[str]] = {}
    todo: list[type[PlaitError]] = list(PlaitError.__subclasses__())
    while todo:
        kind = todo.pop(0)
        todo += kind.__subclasses__()
        if kind.__module__ == "plait.core.errors":
            found.setdefault(kind.exit_code, []).append(kind.__name__)
    meaning = {2: "the input or an option is wrong", 4: "a plan or a simulation cannot be"}
    return [(str(c), f"{meaning.get(c, '')} ({', '.join(names)})") for c, names in sorted(found.items())]


def _command(command: Any, name: str) -> Iterable[str]:
    commands = getattr(command, "commands", None)
    if commands is not None:
        if name != "plait":
            yield from (f"## `{name}`", "", inspect.cleandoc(command.help or ""), "")
        for child, inner in commands.items():
            yield from _command(inner, f"{name} {child}")
        return
    help_text = inspect.cleandoc(command.help or "").replace("\\b", "\b")
    first, _, rest = help_text.partition("\n")
    yield from (f"## `{name}`", "", first, "")
    if rest.strip():
        parts = rest.replace("\b", "").strip().split("\n")
        yield from ("```text", *parts, "```", "")
    context = command.make_context(name, [], resilient_parsing=True)
    rows = [record for p in command.params if (record := p.get_help_record(context)) is not None]
    yield table(("argument or option", "meaning"), ((code(left), right) for left, right in rows))
    yield ""
