"""Reports (common/docs/report.md) and traces (Chrome's trace-event format), read and checked."""

import json
import math
import os
from collections import namedtuple


class BadInput(Exception):
    """What the user can put right; ends the program with one line."""


# name: how the picture calls it. setup: what was run, in words, but for the ranks. memory: {rank: {category: peak bytes}}.
# traffic: [(axis, phase, bytes that rank 0 sent, bytes that all sent, of them between nodes)]. size: ranks. parameters: of the model.
Report = namedtuple("Report", "name setup memory traffic size parameters steps")
# How tokens were shared out over experts, which is counted in some steps. choices: {(step, layer): [of each expert]}. imbalance:
# {(step, layer): the busiest expert's choices over the even share}. Steps and layers from 0.
Load = namedtuple("Load", "name steps layers experts choices imbalance")
# One thing that ran. us on the trace's clock.
Span = namedtuple("Span", "rank stream name start end")
# Pairs of tokens: [(query, key, rank, hop)].
Layout = namedtuple("Layout", "name pairs length ranks")


def check_picture_name(path):
    ending = os.path.splitext(path)[1].lower()
    if ending not in (".png", ".svg", ".pdf"):
        raise BadInput(f"{path} ends in '{ending}'; pictures are .png, .svg or .pdf")


def describe(error):
    return f"no {error} in it" if isinstance(error, KeyError) else str(error)


def split_name(argument):
    """NAME=FILE -> (NAME, FILE); FILE -> (None, FILE)."""
    name, equals, path = argument.partition("=")
    return (name, path) if equals and not os.path.exists(argument) else (None, argument)


def stem(path):
    """What a file's contents are called that have no name: runs/a.trace.json -> a."""
    return os.path.basename(path).removesuffix(".json").removesuffix(".trace")


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {error}") from None


def read_reports(arguments):
    reports = []
    for argument in arguments:
        name, path = split_name(argument)
        data = read_json(path)
        try:
            reports.append(_report(name, path, data))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadInput(f"{path} is not a report that a program wrote with --json ({describe(error)})") from None
    names = [r.name for r in reports]
    return [r if names.count(r.name) == 1 else r._replace(name=f"{r.name} ({split_name(a)[1]})")
            for r, a in zip(reports, arguments)]


def _report(name, path, data):
    config = data["config"]
    memory = {}
    for row in data["memory"]:
        memory.setdefault(int(row["rank"]), {})[str(row["category"])] = int(row["peak_bytes"])
    size = math.prod(int(n) for n in data["mesh"].values()) if "mesh" in data else 1
    parameters, steps = int(config["parameters"]), int(config["steps"])
    if parameters < 1 or steps < 1 or not memory:
        raise ValueError("no parameters, steps or memory in it")
    traffic = [(str(t["axis"]), str(t["phase"]), int(t["wire_bytes"]), int(t["total_wire_bytes"]),
                int(t.get("total_between_nodes_bytes", 0))) for t in data["traffic"]]
    setup = f"{data['program']}, {config['model']} in {config['dtype']}"
    return Report(name or str(config.get("strategy", data["program"])), setup, memory, traffic, size, parameters, steps)


def read_loads(arguments):
    return [_load(a) for a in arguments]


def _load(argument):
    name, path = split_name(argument)
    data = read_json(path)
    try:
        if "program" not in data or not isinstance(rows := data.get("experts", []), list):
            raise ValueError("no program, or no list of experts")
        choices = {(int(r["step"]), int(r["layer"])): [float(n) for n in r["choices"]] for r in rows}
        imbalance = {(int(r["step"]), int(r["layer"])): float(r["imbalance"]) for r in rows}
        steps, layers = sorted({step for step, _ in choices}), sorted({layer for _, layer in choices})
        if not len(rows) == len(choices) == len(steps) * len(layers):
            raise ValueError("some layers of a step are missing or twice there")
        if len({len(c) for c in choices.values()}) > 1:
            raise ValueError("layers of different numbers of experts")
        if any(not c or min(c) < 0 or not 0 < sum(c) < math.inf for c in choices.values()):
            raise ValueError("a layer that no token's choices went to")
        if any(not 0 < x < math.inf for x in imbalance.values()):
            raise ValueError("an imbalance that is no number above 0")
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise BadInput(f"{path} is not a report that a program wrote with --json ({describe(error)})") from None
    if not rows:
        raise BadInput(f"{path} has no load of experts in it; models with experts have one (lesson 06)")
    return Load(name or stem(path), steps, layers, len(next(iter(choices.values()))), choices, imbalance)


def read_traces(arguments):
    return [_trace(a) for a in arguments]


def _trace(argument):
    """The trace's name, and its spans in the order of their start."""
    name, path = split_name(argument)
    data = read_json(path)
    try:
        events = data["traceEvents"] if isinstance(data, dict) else data
        streams = {(e["pid"], e["tid"]): (int(e["pid"]), str(e["args"]["name"])) for e in events
                   if e["ph"] == "M" and e["name"] == "thread_name"}
        spans = []
        for e in events:
            if e["ph"] == "X":
                rank, stream = streams[e["pid"], e["tid"]]
                spans.append(Span(rank, stream, str(e["name"]), float(e["ts"]), float(e["ts"]) + float(e["dur"])))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"{path} is not a trace that a program wrote with --trace ({describe(error)})") from None
    if not spans:
        raise BadInput(f"{path} has no spans in it")
    if any(s.rank < 0 or not 0 <= s.end - s.start < math.inf for s in spans):
        raise BadInput(f"{path} has spans of a rank below 0, or with no time of their own")
    return name or stem(path), sorted(spans, key=lambda s: s.start)


def read_squares(arguments):
    return [_layout(a) for a in arguments]


def _layout(argument):
    name, path = split_name(argument)
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split()
        if lines[:1] != ["query,key,rank,hop"]:
            raise ValueError("another first line")
        pairs = [tuple(int(n) for n in line.split(",")) for line in lines[1:]]
        if not pairs or any(len(p) != 4 or min(p) < 0 or max(p) > 4096 for p in pairs):
            raise ValueError("lines of other than four numbers from 0 to 4096")
        length, ranks = 1 + max(p[0] for p in pairs), 1 + max(p[2] for p in pairs)
        if sorted(p[:2] for p in pairs) != [(q, k) for q in range(length) for k in range(q + 1)]:
            raise ValueError("some pairs are missing, twice there or not visible")
        if any(p[3] >= ranks for p in pairs):
            raise ValueError("more hops than ranks")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, IndexError) as error:
        raise BadInput(f"{path} is not a file of squares that a program wrote with --virtual-trace ({error})") from None
    return Layout(name or path, pairs, 1 + max(p[0] for p in pairs), 1 + max(p[2] for p in pairs))
