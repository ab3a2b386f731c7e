"""The codec of message tables: declared fields, compiled to readers and writers."""
