"""What the language of the source is measured by: sentences of docstrings, openings, vague names."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator

from source_tree import Definition, Module

MAX_WORDS = 25
VAGUE_NAMES = {"one", "ones", "of", "given", "told", "found", "__", "___"}
"""Names that do not describe a thing. `_` is one too, but only if it is read."""

_OPENING = re.compile(r"^(What|Who|Where|Which)\b(?!.*\?$)")
_RELATIVE_WHAT = re.compile(r"\bwhat\b", re.IGNORECASE)
_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`(\"'])|\n\s*\n|\n\s*(?=[-*\d])")
_SECTION = re.compile(r"^\s*(Args|Returns|Raises|Yields|Attributes|Example|Examples|Rule|Idea):", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Sentence:
    """One sentence of a docstring.

    Attributes:
        at: file and line of the docstring.
        text: the sentence on one line.
    """

    at: str
    text: str

    @property
    def words(self) -> int:
        """Number of words."""
        return len(re.findall(r"[\w`'./-]+", self.text))

    @property
    def is_long(self) -> bool:
        """Whether it has more words than MAX_WORDS."""
        return self.words > MAX_WORDS

    @property
    def is_question(self) -> bool:
        """Whether it opens with What, Who, Where or Which and asks nothing."""
        return bool(_OPENING.match(self.text))


def sentences(module: Module) -> list[Sentence]:
    """Return the sentences of the docstrings of a module, without examples, code and tables."""
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | Definition):
            text = ast.get_docstring(node)
            if text:
                at = module.at(getattr(node, "lineno", 1))
                found += [Sentence(at, sentence) for sentence in split(text)]
    return found


def split(docstring: str) -> Iterator[str]:
    """Yield the sentences of a docstring.

    Example:
        >>> list(split("Return it. It is\\na list.\\n\\nExample:\\n    >>> f()\\n"))
        ['Return it.', 'It is a list.']
    """
    lines = docstring.splitlines()
    kept, is_code = [], False
    for line in lines:
        stripped = line.strip()
        if stripped.startswith((">>>", "...")):
            is_code = True
        elif not stripped:
            is_code = False
        is_table = stripped.startswith(("|", "+-", "```")) or (line.startswith("    ") and "  " in stripped)
        kept.append("" if is_code or is_table else line)
    text = _SECTION.sub("\n\n", "\n".join(kept))
    # An argument or attribute begins a new line with its name and a colon.
    text = re.sub(r"\n\s+(?=\*{0,2}[\w, ]+(\([^)]*\))?: )", "\n\n", text)
    for part in _END.split(text):
        sentence = " ".join(part.split())
        if sentence:
            yield sentence


def relative_whats(sentence: str) -> int:
    """Return how often "what" stands in a sentence that is no question."""
    return 0 if sentence.endswith("?") else len(_RELATIVE_WHAT.findall(sentence))


def vague_names(module: Module) -> int:
    """Return the number of variables and arguments with a vague name, and of reads of `_`."""
    count = 0
    for node in ast.walk(module.tree):
        if isinstance(node, ast.arg):
            count += node.arg in VAGUE_NAMES
        elif isinstance(node, ast.Name):
            is_read = isinstance(node.ctx, ast.Load)
            count += node.id == "_" if is_read else node.id in VAGUE_NAMES
    return count


def class_names(module: Module) -> list[str]:
    """Return the names of the classes of a module, without leading underscores."""
    return [node.name.lstrip("_") for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]


def faults(module: Module) -> Iterator[str]:
    """Yield the sentences that are too long or open with What, Who, Where or Which, each with file and line."""
    for sentence in sentences(module):
        if sentence.is_long:
            yield f"{sentence.at}: {sentence.words} words: {sentence.text}"
        if sentence.is_question:
            yield f"{sentence.at}: opens with {sentence.text.split()[0]}: {sentence.text}"
