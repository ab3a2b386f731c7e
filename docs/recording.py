"""Record `roster groups watch` as an animated SVG: members join and leave a group on an embedded broker.

python docs/recording.py FILE. Real members read real records; the frames are what the command draws. Needs no network.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from html import escape
from pathlib import Path

from rich.color import ColorTriplet
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

from roster.cli.groups.picture import Size
from roster.cli.groups.watch import Clock, lines_of
from roster.client import Admin, GroupMember, OffsetAndMetadata
from roster.console.history import GroupHistory
from roster.console.looking import look
from roster.testing import EmbeddedBroker

GROUP, TOPIC, PARTITIONS = "shops", "orders", 6
COLUMNS, LINES = 96, 20
LOOK_S, FRAME_S = 0.7, 1.0
STEPS = {1: "join app-1", 5: "join app-2", 10: "join app-3", 16: "leave app-2"}
"""What happens before a frame."""
FRAMES = 22
FIRST = 14
"""The frame that the picture begins with: a full one."""
WIDE, HIGH = 8.4, 18
"""Pixels of a character."""


def application(bootstrap: str, name: str, stop: threading.Event) -> None:
    """Join the group, and commit what there is in the partitions owned, up to 45 records a second in each."""
    member = GroupMember(bootstrap, GROUP, [TOPIC], client_id=name, assignors=["cooperative-sticky"])
    with member, Admin(bootstrap) as admin:
        while not stop.is_set():
            now = member.ownership()
            if now.revoking:
                member.release(now.revoking)
            if owned := sorted(now.partitions):
                ends, done = admin.end_offsets(owned), admin.group_offsets(GROUP, owned, stable=False)
                read = {tp: min(ends[tp], (done[tp].offset if tp in done else 0) + 45) for tp in owned}
                member.commit({tp: OffsetAndMetadata(offset) for tp, offset in read.items()}, now)
            member.wait(now.epoch, 1.0)


def frames() -> list[list[Text]]:
    """Return the pictures of a run."""
    history, clock, drawn = GroupHistory(), Clock(), []
    threads: dict[str, tuple[threading.Thread, threading.Event]] = {}
    with EmbeddedBroker() as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic(TOPIC, PARTITIONS)
        for frame in range(FRAMES):
            for number in range(PARTITIONS):
                broker.produce(TOPIC, [b"order"] * (15 + 6 * number), partition=number)
            what, _, name = STEPS.get(frame, "").partition(" ")
            if what == "join":
                stop = threading.Event()
                thread = threading.Thread(target=application, args=(broker.bootstrap, name, stop))
                threads[name] = thread, stop
                thread.start()
            elif what == "leave":
                threads[name][1].set()
            seen = look(admin, GROUP)
            # A recording names no host.
            members = tuple(replace(member, host="") for member in seen.members)
            history.see(replace(seen, coordinator="", members=members))
            drawn.append(lines_of(GROUP, history, clock, Size(COLUMNS, LINES)))
            time.sleep(LOOK_S)
        for _, stop in threads.values():
            stop.set()
        for thread, _ in threads.values():
            thread.join()
    return drawn


def colour_of(style: Style) -> str:
    """Return the colour of a style, halfway to the background if it is dim."""
    front, back = MONOKAI.foreground_color, MONOKAI.background_color
    colour = style.color.get_truecolor(MONOKAI) if style.color else front
    if style.dim:
        colour = ColorTriplet(*((a + b) // 2 for a, b in zip(colour, back, strict=True)))
    return colour.hex


def line_of(console: Console, line: Text, row: int) -> str:
    """Return a line as SVG, each run of one style at its column."""
    parts, column = [], 0
    for text, style, _ in line.render(console, end=""):
        used = style if isinstance(style, Style) else Style()
        if text.strip():
            begin = len(text) - len(text.lstrip(" "))
            bold = ' font-weight="bold"' if used.bold else ""
            length = f"{len(text.strip(' ')) * WIDE:.0f}"
            at = f'x="{(column + begin) * WIDE + 10:.0f}" textLength="{length}" fill="{colour_of(used)}"'
            parts.append(f"<tspan {at}{bold}>{escape(text.strip(' '))}</tspan>")
        column += len(text)
    return f'<text xml:space="preserve" y="{row * HIGH + 26}">{"".join(parts)}</text>' if parts else ""


def svg(drawn: list[list[Text]]) -> str:
    """Return the frames as one picture that moves."""
    console = Console(width=COLUMNS, force_terminal=True, color_system="truecolor")
    seconds, width, height = len(drawn) * FRAME_S, COLUMNS * WIDE + 20, LINES * HIGH + 30
    groups = []
    for number, lines in enumerate(drawn):
        text = "".join(line_of(console, line, row) for row, line in enumerate(lines))
        groups.append(f'<g style="animation-delay:{(number - FIRST) * FRAME_S - seconds:g}s">{text}</g>')
    style = (
        f"text{{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre}}g{{visibility:hidden;"
        f"animation:show {seconds:g}s step-end infinite}}g:last-of-type{{visibility:visible}}"
        f"@keyframes show{{0%{{visibility:visible}}{100 / len(drawn):.3f}%{{visibility:hidden}}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
        f"<title>roster groups watch {GROUP}</title><style>{style}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{MONOKAI.background_color.hex}"/>{"".join(groups)}</svg>\n'
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(svg(frames()))
