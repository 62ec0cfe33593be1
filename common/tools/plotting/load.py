"""How evenly a router shares tokens out: each expert's choices as training goes on, and how much the busiest one has."""

from collections import namedtuple

from matplotlib import colors, pyplot, ticker

from plotting import style
from plotting.inputs import BadInput

# Blue: less than the even share, white: just that, red: more. Lines have other colours, which mean a report.
SHARES = pyplot.get_cmap("RdBu_r", 65)
LINES = ("#222222", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#999933")
MOST = len(LINES)

# inches: the picture, the space left and right of the panels (there is the bar of colours), between columns, and the heading
WIDTH, LEFT, RIGHT, BETWEEN, TOP = 12, 0.62, 1.05, 0.55, 0.98
# A panel's name, its map where there is one row of panels or two, ticks, their unit; the lines' heading, and they.
HEAD, MAP, LOW_MAP, TICKS, LABEL, CHART_HEAD, CHART = 0.3, 2.2, 1.35, 0.27, 0.2, 0.32, 1.65
SWATCH = 0.24  # of a line, beside the panel's name

REMARK = ("Colour: an expert's choices in a step over the even share; white is even (1), blue less, red more. "
          "Below: those of the busiest\nexpert, a line for each panel. Beside a panel's name: their mean over the last tenth of "
          "the steps. ")
MEAN = "All are means of the layers, where one number stands for different experts."

# shares: [expert][step], imbalance: [step]; of one layer or the mean. end: the imbalance at the end. color: of its line.
Panel = namedtuple("Panel", "name steps shares imbalance end color")


def panel_of(load, layer, color):
    if layer is not None and layer not in load.layers:
        there = f"layers {', '.join(map(str, load.layers))}" if len(load.layers) > 1 else f"only layer {load.layers[0]}"
        raise BadInput(f"--layer {layer}: {load.name} has {there}")
    layers = load.layers if layer is None else [layer]

    def share(step, expert):
        rows = [load.choices[step, i] for i in layers]
        return sum(row[expert] * load.experts / sum(row) for row in rows) / len(rows)

    shares = [[share(s, e) for s in load.steps] for e in range(load.experts)]
    imbalance = [sum(load.imbalance[s, i] for i in layers) / len(layers) for s in load.steps]
    last = imbalance[-max(1, len(imbalance) // 10):]
    return Panel(load.name, [s + 1 for s in load.steps], shares, imbalance, sum(last) / len(last), color)


def draw_load(arguments, loads):
    if len(loads) > MOST:
        raise BadInput(f"{len(loads)} reports: a picture has space for {MOST}")
    panels = [panel_of(load, arguments.layer, color) for load, color in zip(loads, LINES)]
    rows = 1 if len(panels) <= 3 else 2
    columns = -(-len(panels) // rows)
    high = MAP if rows == 1 else LOW_MAP
    row_height = HEAD + high + TICKS
    height = TOP + rows * row_height + LABEL + CHART_HEAD + CHART + TICKS + LABEL + 0.08
    wide = (WIDTH - LEFT - RIGHT - (columns - 1) * BETWEEN) / columns
    figure = pyplot.figure(figsize=(WIDTH, height))
    norm = colors.TwoSlopeNorm(vmin=0, vcenter=1, vmax=max(2, *(max(map(max, p.shares)) for p in panels)))
    last_step = max(p.steps[-1] for p in panels)
    for i, panel in enumerate(panels):
        row, column = divmod(i, columns)
        bottom = height - TOP - row * row_height - HEAD - high
        axes = figure.add_axes([(LEFT + column * (wide + BETWEEN)) / WIDTH, bottom / height, wide / WIDTH, high / height])
        draw_map(axes, panel, norm, wide, high)
        axes.set_xlim(0.5, last_step + 0.5)
        if column == 0:
            axes.set_ylabel("expert")
        if i + columns >= len(panels):
            axes.set_xlabel("step", labelpad=1)
    draw_scale(figure, norm, height - TOP - HEAD, rows * row_height - HEAD - TICKS, height)
    chart = figure.add_axes([LEFT / WIDTH, (TICKS + LABEL + 0.08) / height, (WIDTH - LEFT - RIGHT) / WIDTH, CHART / height])
    chart.set_xlim(0.5, last_step + 0.5)
    draw_lines(chart, panels)
    means = arguments.layer is None and any(len(load.layers) > 1 for load in loads)
    what = "How tokens were shared out over experts"
    if means or arguments.layer is not None:
        what += ", mean of the layers" if means else f", layer {arguments.layer}"
    style.title(figure, arguments.title or what, REMARK + MEAN * means)
    style.write(figure, arguments.out)


def draw_map(axes, panel, norm, wide, high):
    steps, experts = panel.steps, len(panel.shares)
    middles = [(a + b) / 2 for a, b in zip(steps, steps[1:])]
    edges = [steps[0] - 0.5] + middles + [steps[-1] + 0.5]
    axes.pcolormesh(edges, range(experts + 1), panel.shares, cmap=SHARES, norm=norm, rasterized=True)
    if experts <= 32:
        axes.hlines(range(1, experts), edges[0], edges[-1], color="white", linewidth=1.2)
    axes.set_ylim(experts, 0)
    shown = range(0, experts, next(n for n in (2**i for i in range(64)) if experts <= 10 * n))
    axes.set_yticks([e + 0.5 for e in shown], [str(e) for e in shown], fontsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8.5)
    axes.xaxis.set_major_locator(step_ticks(6))
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    end = axes.set_title(f"busiest {panel.end:.2f}", loc="right", fontsize=9.5, pad=5)
    axes.plot([0, SWATCH / wide], [1 + 0.13 / high] * 2, transform=axes.transAxes, color=panel.color, linewidth=3, clip_on=False,
              solid_capstyle="butt")
    name = axes.set_title(panel.name, loc="left", fontsize=11, fontweight="bold", pad=5, x=(SWATCH + 0.08) / wide)
    room = (wide - SWATCH - 0.2) * axes.figure.dpi - end.get_window_extent().width
    while name.get_window_extent().width > room and len(name.get_text()) > 2:
        name.set_text(name.get_text().rstrip("…")[:-1] + "…")


def step_ticks(most):
    return ticker.MaxNLocator(most, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)


def draw_scale(figure, norm, top, high, height):
    axes = figure.add_axes([(WIDTH - RIGHT + 0.25) / WIDTH, (top - high) / height, 0.16 / WIDTH, high / height])
    bar = figure.colorbar(pyplot.cm.ScalarMappable(norm, SHARES), cax=axes)
    more = [t for t in ticker.MaxNLocator(4, integer=True).tick_values(1, norm.vmax) if 1 < t <= norm.vmax]
    ticks = [0, 0.5, 1] + more
    bar.set_ticks(ticks, labels=[f"{t:g}" for t in ticks])
    bar.outline.set_visible(False)
    axes.tick_params(labelsize=9, length=2)
    axes.set_ylabel("choices / even share", labelpad=4)


def draw_lines(axes, panels):
    axes.axhline(1, color=style.MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.text(1.008, 1, "even", transform=axes.get_yaxis_transform(), va="center", fontsize=9, color=style.MUTED)
    for panel in panels:
        axes.plot(panel.steps, panel.imbalance, color=panel.color, linewidth=1.8, marker="o" if len(panel.steps) == 1 else None)
    top = max(1.2, *(max(p.imbalance) for p in panels))
    axes.set_ylim(1 - 0.08 * (top - 1), top + 0.05 * (top - 1))
    axes.grid(axis="y", color=style.GRID)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5)
    axes.xaxis.set_major_locator(step_ticks(12))
    axes.yaxis.set_major_locator(ticker.MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    axes.set_xlabel("step", labelpad=1)
    axes.set_ylabel("busiest / even share")
    axes.set_title("The busiest expert", loc="left", fontsize=11, fontweight="bold", pad=5)
