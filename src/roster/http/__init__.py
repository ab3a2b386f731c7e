"""The HTTP server of an application: pages in, one address with TLS, a token and limits out."""
