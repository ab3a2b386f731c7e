"""The broker's half of the group protocol as a pure state machine."""
