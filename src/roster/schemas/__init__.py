"""Schema registries: `Registry` asks one that speaks Confluent's HTTP interface."""

from roster.schemas.registry import Registered, Registry, RegistryError

__all__ = ["Registered", "Registry", "RegistryError"]
