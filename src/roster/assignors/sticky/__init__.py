"""The sticky assignors."""

from roster.assignors.sticky.policy import COOPERATIVE_STICKY, STICKY, CooperativeStickyAssignor, StickyAssignor

__all__ = ["COOPERATIVE_STICKY", "STICKY", "CooperativeStickyAssignor", "StickyAssignor"]
