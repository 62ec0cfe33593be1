"""Attention over a ring as squares: which rank computes which pair of tokens, and at which hop; and what a hop lasts for."""

from matplotlib import pyplot

from plotting import style
from plotting.inputs import BadInput

# One colour for each rank; more ranks than these share them.
RANK_COLORS = ("#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#0072B2", "#F0E442", "#5A5A5A")

REMARK = ("Above: a row for a query, a column for a key that it sees. The colour is the rank that has the query and computes the pair, "
          "the number the hop at\nwhich the key comes by. Below: the same squares in time. A hop lasts as long as the rank with the "
          "most squares needs; the rest wait (white).")


def draw_squares(arguments, layouts):
    if max(layout.length for layout in layouts) > 64:
        raise BadInput("squares are drawn for up to 64 tokens, those of 16 ranks; start fewer ranks")
    figure = pyplot.figure(figsize=(12, 7.2))
    width, left = 0.94 / len(layouts), 0.045
    longest = max(sum(lasts(layout)) for layout in layouts)
    for i, layout in enumerate(layouts):
        at = left + i * width
        draw_grid(figure.add_axes([at, 0.335, width * 0.9, 0.475]), layout)
        draw_hops(figure.add_axes([at, 0.075, width * 0.9, 0.2]), layout, longest, first=i == 0)
    style.title(figure, arguments.title or "Who computes which pair of tokens, and when", REMARK)
    ranks = range(max(layout.ranks for layout in layouts))
    patches = [pyplot.Rectangle((0, 0), 1, 1, color=color_of_rank(r)) for r in ranks]
    style.legend(figure, patches, [f"rank {r}" for r in ranks], 7.2)
    style.write(figure, arguments.out)


def color_of_rank(rank):
    return RANK_COLORS[rank % len(RANK_COLORS)]


def draw_grid(axes, layout):
    for query, key, rank, hop in layout.pairs:
        color = color_of_rank(rank)
        axes.add_patch(pyplot.Rectangle((key, query), 1, 1, facecolor=color, edgecolor="white", linewidth=0.6))
        if layout.length <= 32:
            axes.text(key + 0.5, query + 0.53, str(hop), ha="center", va="center", fontsize=7 if layout.length <= 20 else 5,
                      color=style.text_color_on(color))
    axes.set_xlim(0, layout.length)
    axes.set_ylim(layout.length, 0)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_title(layout.name, fontsize=12, fontweight="bold", loc="left")


def counts(layout):
    """[rank][hop]: squares."""
    table = [[0] * layout.ranks for _ in range(layout.ranks)]
    for _, _, rank, hop in layout.pairs:
        table[rank][hop] += 1
    return table


def lasts(layout):
    return [max(rank[hop] for rank in counts(layout)) for hop in range(layout.ranks)]


def draw_hops(axes, layout, longest, first):
    table, begin = counts(layout), 0
    for hop, duration in enumerate(lasts(layout)):
        for rank in range(layout.ranks):
            n = table[rank][hop]
            if n == 0:
                continue
            color = color_of_rank(rank)
            axes.add_patch(pyplot.Rectangle((begin, rank + 0.08), n, 0.84, facecolor=color, edgecolor="white", linewidth=0.6))
            axes.text(begin + n / 2, rank + 0.53, str(n), ha="center", va="center", fontsize=8, color=style.text_color_on(color))
        begin += duration
        if hop + 1 < layout.ranks:
            axes.axvline(begin, color=style.MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
    total = len(layout.pairs)
    axes.set_xlim(0, longest)
    axes.set_ylim(layout.ranks, 0)
    axes.set_yticks([r + 0.5 for r in range(layout.ranks)], [f"rank {r}" if first else str(r) for r in range(layout.ranks)],
                    fontsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{begin} squares of time, {100 * total / layout.ranks / begin:.0f}% of it used", fontsize=9)
