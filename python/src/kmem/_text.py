"""Sizes as text."""

_UNITS = "KMGT"


def size(value):
    """Returns the bytes of a number, or of text as `64M` or `1.5 GiB`."""
    if isinstance(value, int):
        number = value
    else:
        text = value.strip().upper()
        for end in ("IB", "B"):
            if text.endswith(end):
                text = text[: -len(end)]
                break
        shift = 0
        if text and text[-1] in _UNITS:
            shift = 10 * (_UNITS.index(text[-1]) + 1)
            text = text[:-1]
        try:
            number = int(float(text) * (1 << shift))
        except (ValueError, OverflowError):
            raise ValueError("kmem: {!r} is no size, as 1000, 64K, 10M or 2G".format(value))
    if number < 0:
        raise ValueError("kmem: a size is not negative: {!r}".format(value))
    return number


def shown(count):
    """Returns bytes as the command shows them: `1.5 MiB`."""
    if abs(count) < 1024:
        return "{} B".format(count)
    scaled = float(count)
    for unit in _UNITS:
        scaled /= 1024
        if abs(scaled) < 1000 or unit == _UNITS[-1]:
            return "{:.1f} {}iB".format(scaled, unit)
