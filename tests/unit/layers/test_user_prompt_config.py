"""`dify.user_prompt`: which configs there are, and what a refusal says."""

import base64
import subprocess
import sys

import pytest
from pydantic import ValidationError

from agenton.compositor import LayerProvider
from dify_agent.layers.user_prompt import (
    DifyUserPromptDownloadFileConfig,
    DifyUserPromptImageFileConfig,
    DifyUserPromptLayerConfig,
)
from dify_agent.layers.user_prompt.layer import DifyUserPromptLayer

PROVIDER = LayerProvider.from_layer_type(DifyUserPromptLayer)
NAMES = {"filename": "a.png", "mime_type": "image/png", "format": "png"}
URL = {**NAMES, "url": "https://example.org/a.png"}
DATA = {**NAMES, "base64_data": "aWJt"}
REMOTE = {"delivery": "download", "type": "document", "transfer_method": "remote_url", "url": "https://example.org/a"}
STORED = {"delivery": "download", "type": "custom", "transfer_method": "local_file", "reference": "dify-file-ref:x"}

ONE_SOURCE = "exactly one of url or base64_data must be provided"
HTTP_ONLY = "url must use http or https"
NOT_BASE64 = "base64_data must be valid base64"


def without(entry, *members):
    return {key: value for key, value in entry.items() if key not in members}


def refusal(config):
    with pytest.raises(ValidationError) as caught:
        PROVIDER.create_layer(config)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["user_prompt", "execution_context"])
def test_callers_import_the_package_without_the_servers_libraries(package):
    absent = "for name in ('trio', 'quart', 'coredis', 'structlog', 'rich'): sys.modules[name] = None"
    imports = f"import dify_agent.layers.{package}; assert 'dify_agent.layers.{package}.layer' not in sys.modules"
    subprocess.run([sys.executable, "-c", f"import sys\n{absent}\n{imports}"], check=True)


def test_defaults():
    config = DifyUserPromptLayerConfig.model_validate({"text": "x", "files": [URL, STORED]})
    image, download = config.files
    assert isinstance(image, DifyUserPromptImageFileConfig)
    assert (image.delivery, image.type, image.detail, image.base64_data) == ("multimodal", "image", None, None)
    assert isinstance(download, DifyUserPromptDownloadFileConfig)
    assert DifyUserPromptLayerConfig(text="x").files == []


def test_a_config_of_dtos_is_the_same_as_one_of_json():
    given = {"text": "x", "files": [URL, DATA, REMOTE, STORED]}
    read = DifyUserPromptLayerConfig.model_validate(given)
    assert DifyUserPromptLayerConfig(text="x", files=list(read.files)) == read
    assert DifyUserPromptLayerConfig.model_validate_json(read.model_dump_json()) == read
    assert PROVIDER.create_layer(read).config == read


@pytest.mark.parametrize("config", [None, {}, {"text": ""}, {"text": 1}, {"text": "x", "files": None}])
def test_invalid_configs(config):
    refusal(config)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (NAMES, ONE_SOURCE),
        ({**URL, "base64_data": "aWJt"}, ONE_SOURCE),
        ({**NAMES, "url": None, "base64_data": None}, ONE_SOURCE),
        ({**NAMES, "url": ""}, HTTP_ONLY),
        ({**NAMES, "url": "ftp://example.org/a.png"}, HTTP_ONLY),
        ({**NAMES, "url": "data:image/png;base64,aWJt"}, HTTP_ONLY),
        ({**NAMES, "url": "file:///etc/passwd"}, HTTP_ONLY),
        ({**NAMES, "url": "https:///a.png"}, HTTP_ONLY),
        ({**NAMES, "url": " https://example.org/a.png"}, HTTP_ONLY),
        ({**URL, "mime_type": "text/plain"}, "mime_type"),
        ({**URL, "mime_type": "image/png\n"}, "mime_type"),
        ({**URL, "mime_type": "image/"}, "mime_type"),
        ({**URL, "filename": ""}, "filename"),
        ({**URL, "format": ""}, "format"),
        (without(URL, "format"), "format"),
        ({**URL, "detail": "auto"}, "detail"),
        ({**URL, "type": "document"}, "type"),
        ({**URL, "transfer_method": "remote_url"}, "transfer_method"),
        ({**URL, "delivery": "upload"}, "delivery must be 'multimodal' or 'download'"),
        ({**URL, "delivery": ["download"]}, "delivery must be 'multimodal' or 'download'"),
        ({**URL, "delivery": None}, "delivery must be 'multimodal' or 'download'"),
        (7, "valid dictionary"),
        ({**REMOTE, "reference": "r"}, "transfer_method remote_url needs url and no reference"),
        (without(REMOTE, "url"), "transfer_method remote_url needs url and no reference"),
        ({**STORED, "url": "https://example.org"}, "transfer_method local_file needs reference and no url"),
        (without(STORED, "reference"), "transfer_method local_file needs reference and no url"),
        ({**STORED, "reference": ""}, "reference"),
        ({**STORED, "type": "archive"}, "type"),
        ({**STORED, "transfer_method": "carrier"}, "transfer_method"),
        ({**STORED, "filename": "a"}, "filename"),
    ],
)
def test_invalid_files(entry, text):
    assert text in refusal({"text": "x", "files": [entry]})


@pytest.mark.parametrize("url", ["http://example.org", "HTTPS://example.org/a?b#c", "http://[::1]:80/a", "http://u@h/"])
def test_urls(url):
    [file] = DifyUserPromptLayerConfig.model_validate({"text": "x", "files": [{**NAMES, "url": url}]}).files
    assert file.url == url


@pytest.mark.parametrize(
    "data",
    ["", "a", "ab", "abc", "ab=", "abc==", "=", "====", "ab=c", "ab==abcd", "abcd====", "a===", "abcd\n", "ab\n==",
     "ab c", "ab-_", "é===", "\u0661bcd", "data:image/png;base64,aWJt"],
)  # fmt: skip
def test_text_that_is_not_strict_base64(data):
    assert NOT_BASE64 in refusal({"text": "x", "files": [{**NAMES, "base64_data": data}]})


@pytest.mark.parametrize("size", range(1, 12))
def test_whatever_an_encoder_writes_is_base64(size):
    for byte in range(256):
        data = base64.b64encode(bytes([byte, 255 - byte] * size)[:size]).decode()
        file = DifyUserPromptImageFileConfig.model_validate({**NAMES, "base64_data": data})
        assert file.base64_data is data  # not copied


def test_refusals_stay_short_and_do_not_show_the_data():
    secret = "c2VjcmV0" * 100_000
    for files in ([{**NAMES, "base64_data": secret + "!"}], [{**URL, "base64_data": secret}], [{}] * 10_000):
        text = refusal({"text": "x", "files": files})
        assert "c2VjcmV0" not in text
        assert len(text) < 1000
    assert "c2VjcmV0" not in refusal(f'{{"text": "x", "files": "{secret}')
    assert "c2VjcmV0" not in repr(DifyUserPromptImageFileConfig.model_validate({**NAMES, "base64_data": secret}))
