"""Stacked bars: memory by category and traffic by phase, a bar for each report."""

from collections import namedtuple

from matplotlib import pyplot

from plotting import style
from plotting.inputs import BadInput

# What training must keep for each parameter; the rest depends on the batch and on how work is cut.
MODEL_STATE = ("parameters", "master", "optimizer", "gradients", "gradient accumulation")
MEMORY_ORDER = MODEL_STATE + ("deferred weight gradients", "activations", "communication", "workspace")
TRAFFIC_ORDER = ("gradients", "between replicas", "weights", "embedding", "dispatch", "combine", "combine backward",
                 "dispatch backward", "counts", "choices", "balance", "capacity", "router load", "forward", "recomputation",
                 "backward", "head", "cross-entropy", "shared gradients", "norm")
# Of a bar: what is less is as good as invisible.
VISIBLE = 0.005

WIDTH = 12  # inches
PSI = "Ψ: one byte for each parameter of the model"

# parts: [(category, bytes)], note: what stands at its end.
Bar = namedtuple("Bar", "name parts note parameters")


def in_order(sizes, order):
    known = [(c, sizes[c]) for c in order if sizes.get(c, 0) > 0]
    return known + sorted((c, n) for c, n in sizes.items() if c not in order and n > 0)


def in_psi(size, report):
    return f"{style.size_text(size)} = {size / report.parameters:.3g} Ψ"


def draw_memory(arguments, reports):
    bars, states = [], []
    for report in reports:
        totals = {rank: sum(sizes.values()) for rank, sizes in report.memory.items()}
        first, largest = min(totals), max(totals, key=lambda rank: (totals[rank], -rank))
        shown = [first] if totals[largest] <= totals[first] * (1 + VISIBLE) else [first, largest]
        for rank in shown:
            sizes = report.memory[rank]
            state = sum(sizes.get(c, 0) for c in MODEL_STATE)
            name = report.name if len(shown) == 1 else f"{report.name}, rank {rank}"
            note = f"{in_psi(totals[rank], report)}\nstate {state / report.parameters:.3g} Ψ"
            bars.append(Bar(name, in_order(sizes, MEMORY_ORDER), note, report.parameters))
            states.append(state)
    remark = ("Highest bytes of each category on rank 0, and on the rank that holds most where that is another. "
              "Categories peak at different times,\nso a bar is at least as long as the peak of the whole. State: what is left "
              f"of the dotted line. {PSI}.")
    figure, axes, unit = stacked_bars(bars, arguments.title or heading("Peak memory of a rank", reports), remark)
    for row, state in enumerate(states):
        axes.plot([state / unit] * 2, [row - 0.46, row + 0.46], color=style.INK, linestyle=(0, (1, 1.5)), linewidth=1.6)
    style.write(figure, arguments.out)


def draw_traffic(arguments, reports):
    bars = []
    for report in reports:
        own, mean, between_nodes = {}, {}, 0
        for axis, phase, sent, sent_by_all, left_a_node in report.traffic:
            category = "between replicas" if axis.endswith("/outer") else phase.removeprefix("experts ")
            own[category] = own.get(category, 0) + sent / report.steps
            mean[category] = mean.get(category, 0) + sent_by_all / report.steps / report.size
            between_nodes += left_a_node / report.steps / report.size
        differ = abs(sum(own.values()) - sum(mean.values())) > VISIBLE * max(sum(own.values()), 1)
        for sizes, suffix in [(own, ", rank 0"), (mean, ", mean of ranks")] if differ else [(own, "")]:
            total = sum(sizes.values())
            note = in_psi(total, report)
            if between_nodes > 0 and sizes is (mean if differ else own):  # known of all ranks together
                note += f"\n{style.size_text(between_nodes)} between nodes"
            parts = [(c, n) for c, n in in_order(sizes, TRAFFIC_ORDER) if n > VISIBLE * total]
            bars.append(Bar(report.name + suffix, parts, note, report.parameters))
    remark = ("What rank 0 sends to other ranks in a step. Forward and backward: what is sent during them, such as weights "
              "that are gathered\nor activations that are added up. What would be too short to see (the sums for the norm, say) "
              f"is left out. {PSI}.")
    figure, _, _ = stacked_bars(bars, arguments.title or heading("Traffic of a step", reports), remark)
    style.write(figure, arguments.out)


def heading(what, reports):
    """With what all the reports have in common."""
    setups, sizes = {r.setup for r in reports}, {r.size for r in reports}
    if len(setups) > 1:
        return what
    size = sizes.pop()
    return f"{what}: {setups.pop()}" + ("" if sizes else f" on {size} rank{'' if size == 1 else 's'}")


def stacked_bars(bars, title, remark):
    """Bars from left to right, the first on top. Returns the figure, its axes, and the bytes of the axis's unit."""
    longest = max(sum(n for _, n in b.parts) for b in bars)
    if longest <= 0:
        raise BadInput("there is nothing to draw: every report has 0 bytes (one rank sends nothing)")
    unit_name, unit = style.unit_for(longest)
    height = 2.3 + 0.56 * len(bars)
    figure, axes = pyplot.subplots(figsize=(WIDTH, height))
    names = max(0.9, 0.25 + 0.085 * max(len(b.name) for b in bars))  # inches
    notes = max(1.7, 0.25 + 0.075 * max(len(line) for b in bars for line in b.note.split("\n")))
    figure.subplots_adjust(left=names / WIDTH, right=1 - notes / WIDTH, top=1 - 1.65 / height, bottom=0.55 / height)
    axes.set_xlim(0, longest / unit * 1.005)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    for row, bar in enumerate(bars):
        draw_bar(axes, row, bar, unit)
    axes.set_yticks(range(len(bars)), [b.name for b in bars], fontsize=11)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(unit_name)
    axes.grid(axis="x", color=style.GRID)
    axes.set_axisbelow(True)
    if len({b.parameters for b in bars}) == 1:
        to_parameter = unit / bars[0].parameters
        top = axes.secondary_xaxis("top", functions=(lambda x: x * to_parameter, lambda x: x / to_parameter))
        top.set_xlabel("Ψ", color=style.MUTED)
        top.spines["top"].set_visible(False)
    legend(figure, bars, height)
    style.title(figure, title, remark)
    return figure, axes, unit


def draw_bar(axes, row, bar, unit):
    left, inches = 0, axes.get_position().width * WIDTH / axes.get_xlim()[1]
    for category, size in bar.parts:
        color = style.color_of(category)
        length = size / unit
        axes.barh(row, length, left=left, height=0.8, color=color, edgecolor="white", linewidth=0.8)
        label = style.fitting(labels_of(size, bar.parameters), length * inches, 8.5)
        axes.text(left + length / 2, row, label, ha="center", va="center", fontsize=8.5, linespacing=1.1,
                  color=style.text_color_on(color))
        left += length
    axes.text(1.012, row, bar.note, transform=axes.get_yaxis_transform(), va="center", fontsize=9.5)


def labels_of(size, parameters):
    """From the longest to the shortest."""
    number, unit = style.size_text(size).split()
    psi = f"{size / parameters:.2g} Ψ"
    return f"{number} {unit}\n{size / parameters:.3g} Ψ", f"{number}\n{unit}\n{psi}", psi, psi.replace(" ", "\n")


def legend(figure, bars, height):
    """Above the bars, in their order."""
    present = {c for b in bars for c, _ in b.parts}
    order = [c for c, _ in in_order(dict.fromkeys(present, 1), MEMORY_ORDER if "parameters" in present else TRAFFIC_ORDER)]
    patches = [pyplot.Rectangle((0, 0), 1, 1, color=style.color_of(c)) for c in order]
    style.legend(figure, patches, order, height)
