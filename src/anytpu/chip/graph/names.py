"""`Names`: names that are used once."""

from collections.abc import Iterable


class Names:
    """The names in use.

    Args:
        used: names that are taken from the start.
    """

    def __init__(self, used: Iterable[str] = ()):
        self._used = set(used)
        self._counts: dict[str, int] = {}

    def unused(self, wanted: str) -> str:
        """Reserve and return an unused name: `wanted`, or `wanted` with a number.

        Example:
            >>> names = Names(["x"])
            >>> names.unused("x"), names.unused("x"), names.unused("y")
            ('x_2', 'x_3', 'y')
        """
        while True:
            count = self._counts[wanted] = self._counts.get(wanted, 0) + 1
            name = wanted if count == 1 else f"{wanted}_{count}"
            if name not in self._used:
                self._used.add(name)
                return name
