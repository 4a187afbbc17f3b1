#!/usr/bin/python3
"""Writes the screen of a program on a terminal as a picture (SVG). Needs pyte, a terminal emulator
(Debian: python3-pyte).

usage: scripts/screen.py COLUMNSxROWS KEYS FILE.svg COMMAND..

Each key of KEYS is typed when the screen has not changed for half a second, and the picture is taken
when it rests after the last key. `\\r` is Enter. Then the program ends.
"""

import fcntl
import html
import itertools
import os
import pty
import select
import signal
import struct
import sys
import termios

import pyte

# Of one cell, in units of the picture.
WIDTH, HEIGHT = 8, 17
# Seconds without a change. Programs that draw once a second rest in between.
QUIET = 0.5
INK, PAPER = "#d8dee9", "#20242c"
COLORS = {"default": INK, "red": "#e06c75", "green": "#98c379"}


def run(columns, rows, keys, command):
    """The screen of the program after the keys."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        # The size is there before the program asks for it.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execvp(command[0], command)
    for key in [*keys, None]:
        while select.select([terminal], [], [], QUIET)[0]:
            try:
                stream.feed(os.read(terminal, 1 << 16))
            except OSError:
                sys.exit(f"{command[0]} ended: {screen.display}")
        if key is not None:
            os.write(terminal, key.encode())
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    return screen


def style(cell):
    """What cells must share to be drawn as one text: ink, paper, weight."""
    ink, paper = COLORS.get(cell.fg, INK), PAPER
    if cell.reverse:
        ink, paper = paper, ink
    return ink, paper, cell.bold


def svg(screen):
    """The picture."""
    width, height = screen.columns * WIDTH + 16, screen.lines * HEIGHT + 16
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13">',
        f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>',
    ]
    for y in range(screen.lines):
        line = [screen.buffer[y][x] for x in range(screen.columns)]
        x = 0
        for (ink, paper, bold), cells in itertools.groupby(line, style):
            text = "".join(cell.data for cell in cells)
            left, top = 8 + x * WIDTH, 8 + y * HEIGHT
            x += len(text)
            if paper != PAPER:
                out.append(f'<rect x="{left}" y="{top}" width="{len(text) * WIDTH}" '
                           f'height="{HEIGHT}" fill="{paper}"/>')
            text = text.rstrip()
            if text:
                weight = ' font-weight="bold"' if bold else ""
                out.append(f'<text x="{left}" y="{top + 13}" fill="{ink}"{weight} '
                           f'textLength="{len(text) * WIDTH}" xml:space="preserve">'
                           f'{html.escape(text)}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    size, keys, path, *command = sys.argv[1:]
    columns, rows = map(int, size.split("x"))
    screen = run(columns, rows, keys.replace("\\r", "\r"), command)
    with open(path, "w") as out:
        out.write(svg(screen))


main()
