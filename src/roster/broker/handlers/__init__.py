"""Handlers of the requests that are not for the group coordinator, one module per API."""
