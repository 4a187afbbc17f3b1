"""An application for a WSGI server. It never frees what a request to /leak has brought."""

kept = []


def application(environ, start_response):
    if environ["PATH_INFO"] == "/leak":
        kept.append(bytes(100_000))  # holds 100000
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ok\n"]
