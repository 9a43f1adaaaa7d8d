"""The frame of a page: one HTML file, light or dark by the reader's setting, without network requests.

Rule: the page's content security policy forbids requests and every script except its own, whose hash it contains. So
text in a user's names cannot run as a script.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from anytpu.errors import SettingError
from anytpu.report.web.markup import Markup, element, joined

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def whole(title: str, content: Markup, style: str = "", script: str = "") -> str:
    """Return a page as the text of an HTML file.

    Args:
        title: title of the window.
        content: content of the page.
        style: CSS of this page, after the common CSS.
        script: JavaScript of this page, the only script that its policy allows; "" for none.
    """
    policy = f"{_POLICY}; script-src 'sha256-{_digest(script)}'" if script else _POLICY
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        _style(style),
    )
    body = element(
        "body",
        element("main", content, class_="anytpu-report anytpu-page"),
        element("script", Markup(script)) if script else None,
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def piece(content: Markup, style: str = "") -> Markup:
    """Return content as an HTML fragment for a notebook, without a script."""
    return element("div", _style(style), content, class_="anytpu-report")


def write(text: str, path: str | Path) -> Path:
    """Write a page to a file and return its path.

    Raises:
        SettingError: the file cannot be written.
    """
    target = Path(path)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"the page cannot be written to {str(path)!r}: {error.strerror or error}") from error
    return target


def _style(own: str) -> Markup:
    shared = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    return element("style", joined(Markup(shared), Markup(own)))


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
