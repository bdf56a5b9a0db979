"""Panels as pictures."""

import io
from collections.abc import Sequence

from eagle3.bench.panels import Panel
from eagle3.errors import UnsupportedError

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
        names = [*dict.fromkeys(name for panel in panels for name in panel.lines)]
        shown = {}
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for name, points in panel.lines.items():
                place, (xs, ys) = names.index(name), zip(*points, strict=True)
                style = ("-", "--", ":", "-.")[place // 10 % 4] if panel.joined else "none"
                (shown[name],) = axes.plot(xs, ys, linestyle=style, color=f"C{place % 10}", marker="o", markersize=3)
            axes.set(xlabel=panel.x, ylabel=panel.y, xscale="log" if panel.log else axes.get_xscale())
            if not panel.log and all(isinstance(x, float) and x.is_integer() for x in xs):
                axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(alpha=0.3)
        if names != [""]:
            handles = [shown[name] for name in names]
            figure.legend(handles, names, title=panels[0].legend, loc="outside right upper", frameon=False)
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=150, metadata=KINDS[kind])
    return out.getvalue()
