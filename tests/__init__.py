"""The tests, importable as a package: helpers are imported from where they lie, as in `tests.broker.rawclient`."""
