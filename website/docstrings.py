"""Docstrings as Sphinx reads them: what they write as Markdown becomes reStructuredText."""

import re

CODE = re.compile(r"(``?)([^`]+?)\1")


def as_markdown_spans(app, what, name, object_, options, lines):
    """Write code between single backticks as reStructuredText does, and escape what that would read as marks."""
    for index, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "...")):
            continue
        parts, end = [], 0
        for span in CODE.finditer(line):
            parts += [escaped(line[end : span.start()]), f"``{span[2].strip()}``"]
            end = span.end()
            # A letter right after the code, as in `Dataset`s, needs a separator.
            if line[end : end + 1].isalnum():
                parts.append("\\ ")
        lines[index] = "".join([*parts, escaped(line[end:])])


def escaped(text):
    """Return text without marks of reStructuredText: stars, bars and names that end in an underscore."""
    return re.sub(r"(?<=\w)_(?!\w)", r"\\_", re.sub(r"([*|])", r"\\\1", text))
