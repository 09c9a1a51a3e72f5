"""The looks that all pictures share: colours, markers, dashes, sizes, and whose is which.

Colours are Okabe and Ito's, which colour-blind readers tell apart; every curve also has its own
marker and line style, so that the picture survives a black-and-white printer. ``page.html`` has the
same colours, lifted on dark paper.
"""

from __future__ import annotations

COLUMN_WIDTH = 3.4  # inches, one column of a two-column paper
#: Points: of labels and titles, and of ticks and legends.
LABEL_SIZE, TICK_SIZE = 9, 8
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#0072B2", "#D55E00", "#999933")
MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (4, 2, 1, 2)))

#: A method has the same colour in every picture, whichever others are beside it.
SEATS = {
    name: seat
    for seat, names in enumerate(
        (
            ("lecun", "Lecun", "measured"),
            ("xavier", "Xavier", "predicted"),
            ("kaiming-backward", "KaiBack"),
            ("virgo-forward", "VirgoFor"),
            ("virgo-backward+mirrored", "mirrored"),
            ("virgo-backward", "VirgoBack"),
            ("virgo+spectral", "spectral"),
            ("virgo",),
            ("kaiming-forward", "KaiFor"),
            ("lsuv",),
            ("isometric",),
            ("g-init",),
            ("auto",),
            ("default", "PyG's default"),
            ("identity",),
            ("orthogonal",),
            ("latched", "latched, fitted", "classes held"),
        )
    )
    for name in names
} | {"virgo-forward+measured": 19, "virgo-backward+measured": 21}  # colours of their namesakes
#: Curves that a chart shows at first, and which of many these are.
FIRST_SHOWN = 5
_FAVOURED = ("virgo-forward", "virgo-backward", "virgo", "xavier", "kaiming-backward")


def first_shown(names: list[str]) -> list[str]:
    """The curves to show before a reader asks for others.

    Args:
        names: of all curves.

    Returns:
        All of a few, else five.

    >>> first_shown(["lecun", "xavier", "kaiming-forward", "virgo", "auto", "virgo+spectral"])
    ['lecun', 'xavier', 'kaiming-forward', 'virgo', 'auto']
    """
    order = [name for name in _FAVOURED if name in names]
    order += [name for name in names if name not in order]
    return [name for name in names if name in order[:FIRST_SHOWN]]
