"""docs/embedding.md and its code blocks, which tests run as they stand."""

import re

from tests.support.processes import ROOT

DOCUMENT = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """The one code block that begins so. ValueError where there is not one."""
    (found,) = re.findall(rf"```{name}\n(.*?)```", DOCUMENT, re.DOTALL)
    return str(found)
