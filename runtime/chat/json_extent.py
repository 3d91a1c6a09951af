"""How far one JSON value goes, found while its text comes in pieces."""


class JsonExtent:
    """Follows the characters of one JSON value; it looks for the end only, not for faults.

    ended      whether the value is whole
    in_string  whether the next character stands inside a string
    """

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self.in_string = False
        self._escaped = False
        self._scalar = False

    def take(self, text: str, start: int) -> int:
        """Return where the value ends in `text` from `start` on; its length, if it goes on."""
        for at in range(start, len(text)):
            char = text[at]
            if self.in_string:
                self._string(char)
            elif char == '"' and not self._scalar:
                self.in_string = True
            elif char in "{[" and not self._scalar:
                self._depth += 1
            elif char in "}]" and self._depth:
                self._depth -= 1
            elif self._depth == 0:
                if self._scalar and (char in ",}]" or char.isspace()):
                    self.ended = True
                    return at
                self._scalar = True
                continue
            if self._depth == 0 and not self.in_string:
                self.ended = True
                return at + 1
        return len(text)

    def _string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self.in_string = False
