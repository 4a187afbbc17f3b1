"""An application for a WSGI server. It never frees what a request to /leak or /grow has brought. That
of /leak are zeroes, whose pages the kernel has not given yet."""

kept = []
grown = []


def application(environ, start_response):
    if environ["PATH_INFO"] == "/leak":
        kept.append(bytes(100_000))  # holds 100000
    if environ["PATH_INFO"] == "/grow":
        grown.append(b"x" * 100_000)  # holds 100000
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ok\n"]
