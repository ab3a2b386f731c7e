"""The embedded server: sockets, api dispatch, log segments on disk, and the coordinator they run."""
