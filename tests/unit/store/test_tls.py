"""TLS options that are of no use end the start with setting, option and file in the text."""

import shutil
import subprocess

import pytest

from dify_agent.store.tls import tls_context
from dify_agent.store.urls import parse_store_url


@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster", "rediss+sentinel"])
@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
@pytest.mark.parametrize(("content", "complaint"), [(None, "No such file"), (b"no certificate", "cannot be used")])
def test_a_useless_file_is_named(tmp_path, scheme, option, content, complaint):
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_bytes(content)
    url = parse_store_url(f"{scheme}://u:secret@h:1/{'main' if 'sentinel' in scheme else ''}?{option}={path}")
    with pytest.raises(ValueError, match=complaint) as caught:
        tls_context(url)
    assert f"DIFY_AGENT_REDIS_URL: {option}={path} cannot be used: " in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://h", "redis+cluster://h", "redis+sentinel://h/main", "unix:///s"])
def test_without_the_scheme_there_is_no_tls(url):
    assert tls_context(parse_store_url(url)) is None


def test_a_key_without_its_certificate_is_refused():
    with pytest.raises(ValueError, match="ssl_keyfile needs the certificate"):
        tls_context(parse_store_url("rediss://h?ssl_keyfile=/key.pem"))


def test_an_encrypted_key_fails_and_asks_nobody(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on PATH; to run this test: apt-get install openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = "req -x509 -newkey rsa:2048 -passout pass:secret -days 1 -subj /CN=test -keyout"
    subprocess.run(["openssl", *make.split(), str(key), "-out", str(certificate)], check=True, capture_output=True)
    with pytest.raises(ValueError, match=f"ssl_certfile={certificate}, ssl_keyfile={key} cannot be used"):
        tls_context(parse_store_url(f"rediss://h?ssl_certfile={certificate}&ssl_keyfile={key}"))
