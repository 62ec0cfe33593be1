"""What each stream of each rank did, as time goes by: a row for a stream, a rectangle for what ran."""

import re
from collections import namedtuple

from matplotlib import pyplot

from plotting import style
from plotting.inputs import BadInput

COMPUTE = "compute"
# "all_gather over dp (49280 x bf16)": what the communicators call their operations.
OPERATION = re.compile(r"(\w+) over (\S+) \((?:(\d+) x (\w+)|\d+ sends?, \d+ receives?)\)")
# Of a ring that was drawn hop by hop.
HOP = re.compile(r"hop \d+$")
DTYPE_BYTES = {"fp64": 8, "fp32": 4, "int32": 4, "bf16": 2, "int64": 8}
# What a kernel is part of, by its name. Others (matrix products, sums, copies) belong to what ran before them. The
# cross-entropy computes the loss and with it the logits' gradient, with which backward begins.
PHASES = (("backward", re.compile(r"_backward|^attention_delta|^cross_entropy")),
          ("forward", re.compile(r"_forward|^token_runs|^rope_(frequency|table)")),
          ("optimizer", re.compile(r"^adamw|^clip_scale|^sum_of_squares")))
LEGEND = {"forward": "forward", "backward": "backward", "optimizer": "norm, clipping, AdamW", "weights": "all-gather",
          "gradients": "all-reduce, reduce-scatter", "communication": "other communication", "other": "other kernels"}
# By operation: weights are gathered, gradients are summed.
OPERATION_CATEGORIES = {"all_gather": "weights", "all_reduce": "gradients", "reduce_scatter": "gradients"}
# Of the window: gaps that are too short to be seen.
INVISIBLE = 0.001

WIDTH, LEFT, ROW, TOP = 12, 1.75, 0.3, 1.2  # inches: the picture, the space for rows' names, a row, the heading

REMARK = ("A row for each stream of a rank; gaps are waiting. A communication lasts until the rank's part in it is done, which "
          "the slowest of its\npeers decides. Where ranks share cores, lengths vary from run to run, and what is hidden behind "
          "kernels gains no time.")
VIRTUAL = ("A row for each stream; gaps are waiting. Virtual time: kernels take their processor time, communication "
           "what a link\nof a stated speed takes. Where one rank is shown alone, the others are taken to be at the same point.")

# labels: what may stand in it, the longest first. us.
Block = namedtuple("Block", "category labels start end")
# rows: [(rank, stream, blocks)].
Panel = namedtuple("Panel", "name begin end rows")


def classify(spans):
    """spans of one rank, by start -> [(span, category)]."""
    classified, phase = [], "other"
    for span in spans:
        operation = OPERATION.search(span.name)
        named = next((name for name, pattern in PHASES if pattern.search(span.name)), None)
        if operation or (HOP.search(span.name) and span.stream != COMPUTE):
            category = OPERATION_CATEGORIES.get(operation and operation[1], "communication")
        elif span.stream != COMPUTE:
            category = "other"
        else:
            phase = named or phase
            category = "other" if phase == "optimizer" and not named else phase  # what lies between two steps is neither's
        classified.append((span, category))
    return classified


def steps_of(classified):
    """[(begin, end)] of a rank's steps, from the first forward to the optimizer. What the streams of communication do between
    an optimizer and the next forward belongs to both steps, since a trace does not say for which of them it was."""
    forwards, ends, before = [], [], "optimizer"
    for span, category in classified:
        if span.stream != COMPUTE or category not in ("forward", "backward", "optimizer"):
            continue
        if category == "forward" and before == "optimizer":
            forwards.append(span.start)
            ends.append(span.end)
        if forwards:
            before, ends[-1] = category, max(ends[-1], span.end)
    talk = [s for s, _ in classified if s.stream != COMPUTE and OPERATION.search(s.name)]
    edges = [0] + ends, forwards[1:] + [float("inf")]
    return [(min([s.start for s in talk if previous < s.start < forward] + [forward]),
             max([s.end for s in talk if forward < s.start < following] + [end]))
            for forward, end, previous, following in zip(forwards, ends, *edges)]


def window_of(ranks, arguments):
    """The time to show, by flags: (begin, end) over all ranks."""
    everything = [span for classified in ranks.values() for span, _ in classified]
    last = max(s.end for s in everything)
    if arguments.from_ms is not None or arguments.to_ms is not None:
        begin = 0 if arguments.from_ms is None else arguments.from_ms * 1e3
        return begin, last if arguments.to_ms is None else arguments.to_ms * 1e3
    windows = []
    for rank, classified in ranks.items():
        steps = steps_of(classified)
        if not steps:  # no training in it: all there is
            return min(s.start for s in everything), last
        if not 1 <= arguments.step <= len(steps):
            raise BadInput(f"--step {arguments.step}: the trace has steps 1 to {len(steps)}")
        begin, end = steps[arguments.step - 1]
        inside = [(s, c) for s, c in classified if begin <= s.start <= end]
        if arguments.backward:
            backward = [s.start for s, c in inside if c == "backward"]
            begin = min(backward, default=begin)
            end = min((s.start for s, c in inside if c == "optimizer" and s.start > begin), default=end)
        windows.append((begin, end))
    return min(b for b, _ in windows), max(e for _, e in windows)


def with_whole_sums(classified):
    """Of one stream. An all-reduce over MPI is two exchanges with a kernel between them, which adds; here it is one."""
    whole = []
    for span, category in classified:
        last = [s.name for s, _ in whole[-2:]]
        if len(last) == 2 and last[0] == span.name and "all_reduce" in span.name and last[1].startswith("reduce_in_rank_order"):
            whole[-2:] = [(whole[-2][0]._replace(end=span.end), category)]
        else:
            whole.append((span, category))
    return whole


def labels_of(operation):
    name = operation[1].replace("_", "-")
    if operation[3] is None:  # messages of several sizes
        return (name,)
    size = style.size_text(int(operation[3]) * DTYPE_BYTES.get(operation[4], 1))
    return (f"{name} {size}", size)


def blocks_of(classified, stream, begin, end):
    """What is drawn in a stream's row: kernels of a kind that follow each other as one, each communication by itself."""
    blocks = []
    for span, category in with_whole_sums([(s, c) for s, c in classified if s.stream == stream]):
        if span.end < begin or span.start > end:
            continue
        operation = OPERATION.search(span.name)
        hop = HOP.search(span.name)
        if operation or hop:
            labels = (hop[0],) if hop else labels_of(operation)
            blocks.append(Block(category, labels, span.start, span.end))
        elif blocks and blocks[-1].category == category and span.start - blocks[-1].end < INVISIBLE * (end - begin):
            blocks[-1] = blocks[-1]._replace(end=max(blocks[-1].end, span.end))
        else:
            labels = (category,) if category in ("forward", "backward") else ()
            blocks.append(Block(category, labels, span.start, span.end))
    if sum(b.end - b.start for b in blocks) < INVISIBLE * (end - begin):
        return []
    return [b._replace(start=max(b.start, begin), end=min(b.end, end)) for b in blocks]


def panel_of(trace, arguments):
    name, spans = trace
    present = sorted({s.rank for s in spans})
    wanted = wanted_ranks(arguments.ranks, present, name)
    ranks = {rank: classify([s for s in spans if s.rank == rank]) for rank in wanted}
    begin, end = window_of(ranks, arguments)
    rows = []
    for rank, classified in ranks.items():
        streams = dict.fromkeys([COMPUTE] + [s.stream for s, _ in classified])
        of_rank = [(rank, stream, blocks_of(classified, stream, begin, end)) for stream in streams]
        rows += [row for row in of_rank if row[2]]
    if not rows or end <= begin:
        raise BadInput(f"{name}: nothing ran between {begin / 1e3:g} and {end / 1e3:g} ms; "
                       f"the trace reaches from {spans[0].start / 1e3:.3f} to {max(s.end for s in spans) / 1e3:.3f} ms")
    return Panel(name, begin, end, rows)


def wanted_ranks(text, present, name):
    if text is None:
        return present[:4]
    try:
        wanted = [int(r) for r in text.split(",")]
    except ValueError:
        raise BadInput(f"--ranks {text}: numbers with commas between them are wanted, such as 0,1") from None
    for rank in wanted:
        if rank not in present:
            raise BadInput(f"--ranks {text}: {name} has no rank {rank}; it has {', '.join(map(str, present))}")
    return wanted


def draw_timeline(arguments, traces):
    panels = [panel_of(trace, arguments) for trace in traces]
    length = max(p.end - p.begin for p in panels)
    unit, name = next((u for u in ((1e6, "s"), (1e3, "ms")) if length >= 2 * u[0]), (1, "µs"))
    heights = [ROW * panel_rows(p)[-1] + 0.35 for p in panels]
    height = TOP + sum(heights) + 0.3 * (len(panels) - 1) + 0.5
    figure = pyplot.figure(figsize=(WIDTH, height))
    top = height - TOP
    for panel, panel_height in zip(panels, heights):
        axes = figure.add_axes([LEFT / WIDTH, (top - panel_height) / height, (WIDTH - LEFT - 0.25) / WIDTH,
                                (panel_height - 0.35) / height])
        top -= panel_height + 0.3
        draw_panel(axes, panel, length, unit)
    axes.set_xlabel(name)
    legend(figure, panels, height)
    what = "backward of step" if arguments.backward else "step"
    asked = arguments.from_ms is not None or arguments.to_ms is not None
    title = arguments.title or ("Timeline" if asked else f"Timeline: {what} {arguments.step}")
    style.title(figure, title, VIRTUAL if arguments.virtual else REMARK)
    style.write(figure, arguments.out)


def panel_rows(panel):
    """The rows' places from the top, a gap between ranks, and where they end."""
    places, at, before = [], 0, None
    for rank, _, _ in panel.rows:
        at += 0.35 if before not in (None, rank) else 0
        places.append(at)
        at, before = at + 1, rank
    return places + [at]


def draw_panel(axes, panel, length, unit):
    *places, bottom = panel_rows(panel)
    axes.set_xlim(0, length / unit)
    axes.set_ylim(bottom, -0.1)
    per_inch = length / (WIDTH - LEFT - 0.25)
    for place, (_, _, blocks) in zip(places, panel.rows):
        axes.axhspan(place + 0.06, place + 0.94, color="#F6F6F6", zorder=0)
        for b in blocks:
            draw_block(axes, (b.start - panel.begin) / unit, (b.end - b.start) / unit, place, b,
                       style.fitting(b.labels, (b.end - b.start) / per_inch, 7.5))
    axes.set_yticks([p + 0.5 for p in places], [stream for _, stream, _ in panel.rows], fontsize=9)
    for rank in dict.fromkeys(r for r, _, _ in panel.rows):
        own = [p for p, row in zip(places, panel.rows) if row[0] == rank]
        axes.annotate(f"rank {rank}", (0, (own[0] + own[-1] + 1) / 2), xycoords=axes.get_yaxis_transform(),
                      xytext=(-(LEFT - 0.15) * 72, 0), textcoords="offset points", va="center", fontsize=10, fontweight="bold")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=style.GRID, zorder=0.5)
    axes.set_title(panel.name, loc="left", fontsize=11, fontweight="bold", pad=4)
    axes.set_title(f"0 is {panel.begin / 1e3:.2f} ms on the trace's clock", loc="right", fontsize=8.5, color=style.MUTED, pad=4)


def draw_block(axes, start, duration, place, block, label):
    color = style.color_of(block.category)
    axes.add_patch(pyplot.Rectangle((start, place + 0.06), duration, 0.88, facecolor=color, edgecolor="white", linewidth=0.3,
                                    zorder=2))
    axes.text(start + duration / 2, place + 0.52, label, ha="center", va="center", fontsize=7.5, zorder=3,
              color=style.text_color_on(color))


def legend(figure, panels, height):
    present = {b.category for p in panels for _, _, blocks in p.rows for b in blocks
               if b.end - b.start > INVISIBLE * (p.end - p.begin)}
    order = [c for c in LEGEND if c in present]
    patches = [pyplot.Rectangle((0, 0), 1, 1, color=style.color_of(c)) for c in order]
    style.legend(figure, patches, [LEGEND[c] for c in order], height)
