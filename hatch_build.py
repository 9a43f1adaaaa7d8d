"""The metadata that depends on the repository's address: the project's URLs, and the README of package indexes.

Idea: on an index, links to files of the repository and pictures need whole addresses. Until pyproject.toml has the
repository's address, a link becomes its text and the command that prints the page, and a picture is left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"(?P<is_picture>!?)\[(?P<label>[^]]*)\]\((?!https?:|#)(?P<target>[^)]+)\)")


class RepositoryHook(MetadataHookInterface):
    """Sets `readme` and `urls` from the option `repository`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the fields to the project's metadata."""
        repository = self.config["repository"].rstrip("/")
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": index_text(readme, repository)}
        if repository:
            changelog = f"{repository}/blob/main/CHANGELOG.md"
            metadata["urls"] = {"Repository": repository, "Issues": f"{repository}/issues", "Changelog": changelog}


def index_text(readme: str, repository: str) -> str:
    """Return a README without relative links.

    Args:
        readme: the Markdown text.
        repository: address of the repository, "https://github.com/OWNER/NAME", or "" if it has none.

    Example:
        >>> index_text("[Stopping](docs/stopping.md) and [05](examples/05.py)", "")
        'Stopping (`anytpu docs stopping`) and 05'
    """

    def without_relative(link: re.Match[str]) -> str:
        label, target = link["label"], link["target"]
        if repository:
            view = "raw" if link["is_picture"] else "blob"
            return f"{link['is_picture']}[{label}]({repository}/{view}/main/{target})"
        if link["is_picture"]:
            return ""
        page = re.fullmatch(r"docs/(.+)\.md", target)
        if page is None:
            return label
        command = f"`anytpu docs {page[1]}`"
        return command if label == target else f"{label} ({command})"

    return RELATIVE_LINK.sub(without_relative, readme)
