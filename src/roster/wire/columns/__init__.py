"""Records as Arrow columns: read from a response (`reader`, `decode_kernel`), encoded (`writer`, `encode_kernel`)."""
