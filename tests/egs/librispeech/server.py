"""A server on this machine, for what the recipe downloads."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves ``files``, by byte ranges too, and breaks off where ``cut`` says."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.cut: dict[str, int] = {}
        self.requests: list[tuple[str, int]] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        body = self.server.files.get(name)
        if body is None:
            self.send_error(404)
            return
        byte_range = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(byte_range[1]) if byte_range else 0
        self.server.requests.append((name, start))
        self.send_response(206 if byte_range else 200)
        if byte_range:
            last = len(body) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(body)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : self.server.cut.get(name)])
        self.close_connection = True

    def log_message(self, *args) -> None:
        pass


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[Server]:
    """Serve files, whatever the path before their names."""
    server = Server(files)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
