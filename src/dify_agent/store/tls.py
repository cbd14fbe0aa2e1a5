"""TLS of the store's connections, from the options of its URL."""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dify_agent.store.urls import StoreUrl

_CHECKED = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}


def tls_context(url: StoreUrl) -> ssl.SSLContext | None:
    """None where the URL asks for no TLS. Reads files, so once for all connections.

    Raises:
        ValueError: a file cannot be read, or is no certificate or key. The text names setting, option and file.
    """
    if not url.encrypted:
        return None
    options = dict(url.tls)
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise ValueError("DIFY_AGENT_REDIS_URL: ssl_keyfile needs the certificate that it belongs to, ssl_certfile")
    with _naming(options, "ssl_ca_certs"):
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    if certificate := options.get("ssl_certfile"):
        with _naming(options, "ssl_certfile", "ssl_keyfile"):
            # With no password given, OpenSSL would ask for an encrypted key's on the terminal and wait.
            context.load_cert_chain(certificate, options.get("ssl_keyfile"), password="")
    checked = options.get("ssl_cert_reqs", "required")
    if options.get("ssl_check_hostname", "true").lower() in ("false", "0", "no") or checked != "required":
        context.check_hostname = False
    context.verify_mode = _CHECKED[checked]
    return context


@contextmanager
def _naming(options: Mapping[str, str], *names: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # which ssl.SSLError is, too
        given = ", ".join(f"{name}={options[name]}" for name in names if name in options) or "the system's authorities"
        raise ValueError(f"DIFY_AGENT_REDIS_URL: {given} cannot be used: {error.strerror or error}") from error
