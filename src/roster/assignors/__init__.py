"""The policies as pure functions: one file each, assign(problem) -> Plan."""
