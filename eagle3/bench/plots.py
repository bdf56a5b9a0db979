"""Panels as pictures."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eagle3.bench.panels import Panel
from eagle3.errors import UnsupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

PLAIN = "plain decoding"
KINDS = {  # of files, with what would differ between equal plots taken out
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def draw(panels: Sequence[Panel], kind: str) -> bytes:
    """A picture as a file of a `kind` in KINDS; equal panels give equal bytes. UnsupportedError without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as fault:
        raise UnsupportedError("plots need matplotlib: pip install 'eagle3[bench]'") from fault

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's own style is
        matplotlib.rcParams.update({"font.size": 9, "svg.hashsalt": "eagle3", "svg.fonttype": "none"})
        figure = Figure(figsize=(4.2 * len(panels) + 1.4, 3.6), layout="constrained")
        names = [*dict.fromkeys(name for panel in panels for name in (*panel.lines, *panel.plain))]
        shown: dict[str, Line2D] = {}
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _lines(axes, panel, names, shown)
            _axes(axes, panel)
        if shown.keys() != {""}:
            key = panels[0].legend
            labels = [f"{key}={name}" if key and name != PLAIN else name for name in shown if name]
            handles = [line for name, line in shown.items() if name]
            figure.legend(handles, labels, loc="outside right upper", frameon=False)
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=150, metadata=KINDS[kind])
    return out.getvalue()


def _lines(axes: "Axes", panel: Panel, names: Sequence[str], shown: "dict[str, Line2D]") -> None:
    """Draw a panel's lines, each in the colour of its name's place in `names`; `shown` gains what a legend tells."""
    for name, points in panel.lines.items():
        place, (xs, ys) = names.index(name), zip(*points, strict=True)
        style = ("-", "--", ":", "-.")[place // 10 % 4] if panel.joined else "none"
        (shown[name],) = axes.plot(xs, ys, linestyle=style, color=f"C{place % 10}", marker="o", markersize=3)
    for name, points in panel.plain.items():
        xs, ys = zip(*points, strict=True)
        colour = f"C{names.index(name) % 10}"
        (shown[PLAIN],) = axes.plot(xs, ys, linestyle="--", color=colour, marker="_", linewidth=1, alpha=0.6)


def _axes(axes: "Axes", panel: Panel) -> None:
    """Labels, scales and ticks."""
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.set_ylim(bottom=max(axes.get_ylim()[0], 0.0) if panel.bottom is None else panel.bottom)
    axes.grid(alpha=0.3)
    xs = [x for points in panel.lines.values() for x, _ in points]
    if panel.log:
        above = [x for x in xs if isinstance(x, float) and x > 0]
        span = max(above) / min(above) if above else 1.0
        if span < 10:  # a decade's own ticks are too few here, and those between too many
            axes.xaxis.set_major_locator(MaxNLocator(5))
        else:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if span < 100 else (1.0,)))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    elif all(isinstance(x, float) and x.is_integer() for x in xs):
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
