"""State saved while a group runs, and brought to another: public names, which live in `roster.saved`."""

from typing import TYPE_CHECKING

from roster._on_demand import on_demand

if TYPE_CHECKING:
    from roster.saved.export import Export, export
    from roster.saved.importing import import_state
    from roster.saved.job import StateProgress
    from roster.saved.migration import migrate_state
    from roster.saved.repartition import repartition_state
    from roster.saved.seeding import seed_state

__all__ = ["Export", "StateProgress", "export", "import_state", "migrate_state", "repartition_state", "seed_state"]

_MODULES = ("job", "export", "importing", "migration", "repartition", "seeding")

__getattr__ = on_demand("roster.saved", _MODULES)
