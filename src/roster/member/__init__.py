"""The client's half of the group protocol as a pure state machine, and the leader's duty."""
