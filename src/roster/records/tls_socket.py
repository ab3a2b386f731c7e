"""A TLS socket that behaves like a plain one that does not block."""

import socket
import ssl

from roster.security import Security
from roster.security.tls import cut_off, is_cut_off, tls_context, tls_problem


class TlsSocket:
    """TLS over a connected socket: where it must wait for its peer it raises BlockingIOError, as sockets do.

    `host` is the name that the broker's certificate must have.
    """

    def __init__(self, sock: socket.socket, host: str, security: Security) -> None:
        context = tls_context(security)
        self._sock = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        self._security = security
        self.is_ready = False
        self.wants_write = True

    def shake_hands(self) -> None:
        """Go on with the handshake; BlockingIOError until it is done."""
        self.wants_write = False
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self.wants_write = True
            raise BlockingIOError from None
        self.is_ready = True

    def send(self, data: memoryview) -> int:
        """Send some of the bytes; return how many."""
        try:
            return self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv(self, most: int) -> bytes:
        """Receive at most so many bytes, without waiting; none at the end."""
        try:
            return self._sock.recv(most)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket without a farewell."""
        self._sock.close()

    def explain(self, error: OSError) -> tuple[str, bool]:
        """Explain an error, and say whether another attempt is useless."""
        problem = tls_problem(error, self._security)
        if problem is not None:
            return problem, True
        if not self.is_ready and is_cut_off(error):
            return cut_off(self._security), False
        return str(error), False
