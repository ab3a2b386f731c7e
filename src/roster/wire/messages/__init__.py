"""Every request and response that Roster supports; one class covers all versions."""

from typing import TYPE_CHECKING

from roster._on_demand import on_demand

if TYPE_CHECKING:
    from roster.wire.messages.cluster import *
    from roster.wire.messages.committed_offsets import *
    from roster.wire.messages.configs import *
    from roster.wire.messages.group_admin import *
    from roster.wire.messages.join_sync import *
    from roster.wire.messages.produce_fetch import *
    from roster.wire.messages.sasl import *
    from roster.wire.messages.security import *
    from roster.wire.messages.topics import *
    from roster.wire.messages.transactions import *
else:
    __getattr__ = on_demand(
        __name__,
        (
            "produce_fetch",
            "cluster",
            "sasl",
            "committed_offsets",
            "group_admin",
            "join_sync",
            "topics",
            "configs",
            "transactions",
            "security",
        ),
    )
