"""The one place where a request meets the ACLs, before its handler: what the client may not do is taken out of the
request, and refused in the response with Kafka's error codes. `GATES` has one entry for each request.
"""

from roster.broker.gate.table import GATES, guarded, guarded_produce

__all__ = ["GATES", "guarded", "guarded_produce"]
