"""Hooks of mkdocs: the tables of options are made from their declaration."""

from __future__ import annotations

import re

from roster.client.options import GROUP_MEMBER_OPTIONS
from roster.member.task_options import TASK_OPTIONS
from roster.model.options import markdown_table
from roster.security.settings import SECURITY_OPTIONS
from roster.spark.pipeline_options import PIPELINE_OPTIONS

TABLES = {
    "GroupMember": GROUP_MEMBER_OPTIONS,
    "Pipeline": PIPELINE_OPTIONS,
    "Security": SECURITY_OPTIONS,
    "TaskOptions": TASK_OPTIONS,
}
_MARK = re.compile(r"^<!-- options: (\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the table of a class's options where a page has the mark `<!-- options: CLASS -->`."""
    return _MARK.sub(lambda mark: markdown_table(TABLES[mark[1]].values()), markdown)
