"""Records as Arrow columns: read by `reader` and `decode_kernel`, written by `writer` and its two kernels."""
