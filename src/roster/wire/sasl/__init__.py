"""SASL mechanisms as state machines on bytes, without I/O and randomness: nonces are arguments.

The client's side of a mechanism has `first()`, the initial response, and `answer(challenge)`, the reply to a message of
the server, None once the exchange is complete. `ScramServer` and `read_plain` are the server's side.
"""
