"""The public test kit: Roster's broker for tests, in a thread of the test or as a process that can be killed."""

from roster.testing.broker import BrokerProcess, quick_config, running_broker

__all__ = ["BrokerProcess", "quick_config", "running_broker"]
