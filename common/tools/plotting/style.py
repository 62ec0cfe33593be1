"""What all pictures share: one colour for one thing, sizes in words, and how a figure is written.

The colours are those of Okabe and Ito, and some of Paul Tol's, which people with any of the usual kinds of colour blindness tell
apart; neighbours also differ in lightness, and what is large is labelled. Related things have related colours: weights are blue,
gradients red to yellow, forward and backward violet, the model's two ends and the loss green to sand.
"""

import io
import os
import zlib

import matplotlib
from matplotlib import colors, pyplot
from PIL import Image  # which matplotlib brings

from plotting.inputs import BadInput

COLORS = {
    # memory
    "parameters": "#0072B2",
    "master": "#56B4E9",
    "optimizer": "#009E73",
    "gradients": "#D55E00",
    "gradient accumulation": "#E69F00",
    "deferred weight gradients": "#F0E442",
    "activations": "#CC79A7",
    "communication": "#5A5A5A",
    "workspace": "#BBBBBB",
    # traffic, by phase, and time, by what runs
    "weights": "#0072B2",
    "forward": "#B9B2EA",
    "recomputation": "#8577CC",
    "backward": "#4B3C9A",
    "embedding": "#44AA99",
    "head": "#DDCC77",
    "cross-entropy": "#117733",
    "shared gradients": "#EE8866",
    "norm": "#009E73",
    "between replicas": "#8C1D4F",
    "dispatch": "#88CCEE",
    "combine": "#3F6FB5",
    "combine backward": "#DC8A9B",
    "dispatch backward": "#993355",
    "counts": "#999933",
    "choices": "#BBCC33",
    "balance": "#661100",
    "capacity": "#A0703C",
    "router load": "#707070",
    "other": "#BBBBBB",
}
# A pipeline's: backward is green, its halves are not. Lighter shades of them are told apart too.
PASSES = {"F": "#0072B2", "B": "#117733", "I": "#AA4499", "W": "#D55E00"}
OTHERS = ("#882255", "#999933", "#332288", "#661100", "#6699CC", "#AA4499")  # for what has no entry above
INK, MUTED, GRID = "#222222", "#6B6B6B", "#E4E4E4"

matplotlib.rcParams.update({
    "font.size": 10, "axes.edgecolor": MUTED, "axes.labelcolor": INK, "text.color": INK, "xtick.color": MUTED,
    "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "ref5d", "figure.dpi": 100,
})


def color_of(category):
    return COLORS.get(category) or OTHERS[zlib.crc32(category.encode()) % len(OTHERS)]


def text_color_on(color):
    """Black or white, whichever is easier to read there."""
    r, g, b = colors.to_rgb(color)
    return "white" if 0.299 * r + 0.587 * g + 0.114 * b < 0.55 else INK


def size_text(size):
    """Bytes in three digits and a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size /= 1024
    else:
        unit = "TiB"
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:#.3g} {unit}"


def fitting(labels, inches, points):
    """The first of the labels that is not wider, or nothing."""
    return next((t for t in labels if max(map(len, t.split("\n"))) * 0.0091 * points < inches), "")


def unit_for(largest):
    """The unit of an axis that reaches `largest` bytes, and its bytes."""
    units = [("bytes", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40)]
    return max((u for u in units if largest >= u[1]), key=lambda u: u[1], default=units[0])


def with_spaces(number):
    return f"{number:,}".replace(",", " ")


def title(figure, heading, remark):
    """Both above the picture, whose top the caller leaves free."""
    height = figure.get_figheight()
    figure.text(0.15 / figure.get_figwidth(), 1 - 0.14 / height, heading, fontsize=14, fontweight="bold", va="top")
    figure.text(0.15 / figure.get_figwidth(), 1 - 0.46 / height, remark, fontsize=9.5, color=MUTED, va="top", linespacing=1.35)


def legend(figure, patches, names, height):
    """One line below the title's remark."""
    figure.legend(patches, names, loc="upper left", bbox_to_anchor=(0.15 / figure.get_figwidth(), 1 - 0.93 / height),
                  ncol=len(names), frameon=False, fontsize=9.5, handlelength=1, handleheight=1, columnspacing=1.3,
                  handletextpad=0.5, borderaxespad=0, borderpad=0)


def in_few_colors(png):
    """The same picture in a third of the bytes."""
    small = io.BytesIO()
    Image.open(png).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return small


def write(figure, path):
    """Writes all of the picture or nothing, and prints its name."""
    buffer, kind = io.BytesIO(), os.path.splitext(path)[1][1:].lower()
    figure.savefig(buffer, format=kind, dpi=150)
    pyplot.close(figure)
    if kind == "png":
        buffer = in_few_colors(buffer)
    try:
        with open(path, "wb") as file:
            file.write(buffer.getvalue())
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None
    print(path)
