"""A pipeline's schedule as papers draw it: a row for each rank, a box for each cell with its micro-batch, gaps for waiting."""

import re
from collections import namedtuple

from matplotlib import colors, pyplot

from plotting import style
from plotting.inputs import BadInput

STREAM = "pipeline"
# "2F0": stage 2, forward, micro-batch 0. "(2F4;5B1)OVERLAP_F_B": a forward and a backward that take turns.
CELL = re.compile(r"(?:(\d+)([FBIW])(\d+)|\((\d+)(F)(\d+);(\d+)(B)(\d+)\)OVERLAP_F_B)")
LEGEND = {"F": "forward (F)", "B": "backward (B)", "I": "gradient of the input (I)", "W": "gradient of the weights (W)"}
# Points of a number: at most, at most in half a box, and at least (smaller ones are left out).
LARGEST, IN_HALF, SMALLEST = 9, 7.5, 4.5

# inches: the picture, the space for ranks' names, a row, the heading, and above and below a panel: its name, ticks, their unit
WIDTH, HIGHEST, LEFT, ROW, TOP, HEAD, TICKS, LABEL = 12, 200, 0.75, 0.33, 1.17, 0.3, 0.3, 0.2

ROWS = "A row for each rank, a box for each cell with its micro-batch; gaps are waiting."
HALVES = " In two: F&B, a forward (above) and a backward that take turns."
VIRTUAL = " Times are virtual."
COST = ("Cost: from a rank's first beginning to its last end, where that is longest. Idle: the part of it in which a rank "
        "waits, on average.")

# Of one micro-batch through a stage.
Part = namedtuple("Part", "stage kind micro_batch")
# parts: one, or those of F&B. us.
Box = namedtuple("Box", "rank parts start end")
# shades: {(rank, way): which of the rank's it is, from 0}. entries: {micro-batch: the rank where it comes in}. plain: in units
# of a simulation, not in us.
Panel = namedtuple("Panel", "name ranks boxes shades entries begin length cost idle plain")


def runs_of(trace):
    """[run][box] of the trace's schedule: another run begins where a rank has a cell again."""
    name, spans = trace
    rows, seen = {}, {}
    for span in spans:
        if span.stream != STREAM:
            continue
        row, cells = rows.setdefault(span.rank, [[]]), seen.setdefault(span.rank, set())
        if span.name in cells:
            row.append([])
            cells.clear()
        cells.add(span.name)
        row[-1].append(Box(span.rank, parts_of(name, span), span.start, span.end))
    if not rows:
        raise BadInput(f"{name} has no stream '{STREAM}'; lesson 05's programs write one")
    missing = next((r for r in range(1 + max(s.rank for s in spans)) if r not in rows), None)
    if missing is not None:
        raise BadInput(f"{name}: rank {missing} has no stream '{STREAM}', as others have")
    return [sum(run, []) for run in zip(*(rows[r] for r in sorted(rows)))]


def parts_of(name, span):
    match = CELL.fullmatch(span.name)
    if not match:
        raise BadInput(f"{name}: '{span.name}' of rank {span.rank} is no cell of a schedule, such as 2F0 or "
                       "(2F4;5B1)OVERLAP_F_B")
    found = [g for g in match.groups() if g is not None]
    return [Part(int(stage), kind, int(micro_batch)) for stage, kind, micro_batch in zip(*[iter(found)] * 3)]


def panel_of(name, boxes):
    ranks = 1 + max(b.rank for b in boxes)
    rows = [[b for b in boxes if b.rank == r] for r in range(ranks)]
    cost = max(row[-1].end - row[0].start for row in rows)
    if cost <= 0:
        raise BadInput(f"{name}: its cells take no time")
    begin = min(b.start for b in boxes)
    idle = sum(1 - sum(b.end - b.start for b in row) / cost for row in rows) / ranks
    # Micro-batches that enter at another rank use stages of their own (DualPipe's directions).
    entries = {}
    for box in boxes:
        for part in box.parts:
            if part.stage == 0 and part.kind == "F":
                entries.setdefault(part.micro_batch, box.rank)
    shades = {}
    for rank, row in enumerate(rows):
        ways = sorted({way_of(part, entries) for box in row for part in box.parts})
        shades.update({(rank, way): k for k, way in enumerate(ways)})
    length = max(b.end for b in boxes) - begin
    return Panel(name, ranks, boxes, shades, entries, begin, length, cost, idle, is_plain(boxes))


def way_of(part, entries):
    return entries.get(part.micro_batch, 0), part.stage


def is_plain(boxes):
    """Whether times are those of a simulation in units: all cells of a kind take as long, the shortest a few units."""
    lengths = {}
    for box in boxes:
        lengths.setdefault("".join(p.kind for p in box.parts), []).append(box.end - box.start)
    return all(max(of_kind) - min(of_kind) < 0.002 for of_kind in lengths.values()) and min(map(min, lengths.values())) < 10


def shown_runs(traces, step):
    """Of each trace its run number `step`. One that has no other is shown beside those of several, for comparison."""
    all_runs = [runs_of(t) for t in traces]
    several = any(len(runs) > 1 for runs in all_runs)
    for (name, _), runs in zip(traces, all_runs):
        single = several and len(runs) == 1
        if not single and not 1 <= step <= len(runs):
            raise BadInput(f"--step {step}: {name} has " + ("only step 1" if len(runs) == 1 else f"steps 1 to {len(runs)}"))
        yield name, runs[0 if single else step - 1]


def draw_pipeline(arguments, traces):
    panels = [panel_of(name, boxes) for name, boxes in shown_runs(traces, arguments.step)]
    # What has the same unit has the same scale.
    longest = {plain: max((p.length for p in panels if p.plain == plain), default=0) for plain in (True, False)}
    labelled = [following is None or following.plain != p.plain for p, following in zip(panels, panels[1:] + [None])]
    heights = [HEAD + ROW * p.ranks + TICKS + LABEL * label for p, label in zip(panels, labelled)]
    height = TOP + sum(heights) + 0.05
    if height > HIGHEST:
        raise BadInput("there are too many ranks or traces for one picture")
    figure = pyplot.figure(figsize=(WIDTH, height))
    top = height - TOP
    for panel, label, panel_height in zip(panels, labelled, heights):
        axes = figure.add_axes([LEFT / WIDTH, (top - HEAD - ROW * panel.ranks) / height, (WIDTH - LEFT - 0.25) / WIDTH,
                                ROW * panel.ranks / height])
        top -= panel_height
        draw_panel(axes, panel, longest[panel.plain])
        if label:
            axes.set_xlabel("units of time" if panel.plain else "ms", fontsize=9, labelpad=2)
    legend(figure, panels, height)
    halves = any(len(b.parts) > 1 for p in panels for b in p.boxes)
    remark = ROWS + HALVES * halves + VIRTUAL * arguments.virtual + "\n" + COST
    style.title(figure, arguments.title or f"Pipeline schedule{'s' if len(panels) > 1 else ''}", remark)
    style.write(figure, arguments.out)


def draw_panel(axes, panel, longest):
    unit = 1 if panel.plain else 1e3
    axes.set_xlim(0, longest / unit)
    axes.set_ylim(panel.ranks, 0)
    for rank in range(panel.ranks):
        axes.barh(rank + 0.5, panel.length / unit, height=0.92, color="#F2F2F2", zorder=0)
    inches = (WIDTH - LEFT - 0.25) / longest  # of a us or unit
    widths = sorted(b.end - b.start for b in panel.boxes)
    digits = max(len(str(p.micro_batch)) for b in panel.boxes for p in b.parts)
    usual = min(LARGEST, max(6.5, 1.4 * points_for(digits, widths[len(widths) // 4] * inches)))  # sizes do not differ much
    for box in panel.boxes:
        width = (box.end - box.start) * inches
        draw_box(axes, panel, box, unit, min(usual, points_for(digits, width)), edge=min(0.5, width * 72 / 8))
    axes.set_yticks([r + 0.5 for r in range(panel.ranks)], [f"rank {r}" for r in range(panel.ranks)], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8.5)
    axes.spines["left"].set_visible(False)
    axes.set_title(panel.name, loc="left", fontsize=11, fontweight="bold", pad=4)
    cost = f"{panel.cost:.6g}" if panel.plain else f"{panel.cost / 1e3:.{1 if panel.cost < 1e5 else 0}f} ms"
    axes.set_title(f"cost {cost}, {100 * panel.idle:.1f}% idle", loc="right", fontsize=9.5, pad=4)


def points_for(digits, inches):
    return min(LARGEST, inches / (digits * 0.01))


def draw_box(axes, panel, box, unit, points, edge):
    start, length = (box.start - panel.begin) / unit, (box.end - box.start) / unit
    high = 0.92 / len(box.parts)
    for i, part in enumerate(box.parts):
        color = color_of(panel, box.rank, part)
        top = box.rank + 0.04 + i * high
        axes.add_patch(pyplot.Rectangle((start, top), length, high, facecolor=color, edgecolor="white", linewidth=edge,
                                        zorder=2))
        if points >= SMALLEST:
            axes.text(start + length / 2, top + high / 2 + 0.02, str(part.micro_batch), ha="center", va="center", zorder=3,
                      fontsize=points if len(box.parts) == 1 else min(points, IN_HALF), color=style.text_color_on(color))


def color_of(panel, rank, part):
    """Lighter for each further of the rank's stages."""
    shade, shades = panel.shades[rank, way_of(part, panel.entries)], 1 + max(panel.shades.values())
    return lighter(style.PASSES[part.kind], 0.62 * shade / max(shades - 1, 1))


def lighter(color, share):
    return tuple(c + (1 - c) * share for c in colors.to_rgb(color))


def legend(figure, panels, height):
    present = {p.kind for panel in panels for b in panel.boxes for p in b.parts}
    entries = [(style.PASSES[kind], text) for kind, text in LEGEND.items() if kind in present]
    two_sided = [len(set(p.entries.values())) > 1 for p in panels]
    further = max((max(p.shades.values()) for p, two in zip(panels, two_sided) if not two), default=0)
    what = ["a rank's second stage" if further == 1 else "a rank's further stages"] if further else []
    if any(two_sided):
        what.append("from the last rank to the first")
    if what:
        entries.append((lighter(style.MUTED, 0.62), "lighter: " + ", or ".join(what)))
    patches = [pyplot.Rectangle((0, 0), 1, 1, color=color) for color, _ in entries]
    style.legend(figure, patches, [text for _, text in entries], height)
