"""From a tool's items to the text that the model reads (integrations 4.3)."""

from base64 import b64encode

import pytest

from dify_agent.layers.dify_plugin import messages
from dify_agent.layers.dify_plugin.messages import Observation


def item(kind, meta=None, **message):
    return {"type": kind, "message": message, "meta": meta}


def chunk(data, *, key="f", end=False, meta=None, sequence=0):
    text = b64encode(data).decode()
    return item("blob_chunk", meta, id=key, sequence=sequence, total_length=9, blob=text, end=end)


def observed(*items):
    observation = Observation()
    for given in items:
        observation.add(given)
    return observation.text()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], ""),
        ([item("text", text="a"), item("text", text=" \u2028ü\n"), {"message": {"text": "b"}}], "a \u2028ü\nb"),
        ([item("link", text="https://x/y")], "result link: https://x/y. please tell user to check it."),
        ([item("variable", variable_name="v", variable_value=[1], stream=True)], ""),
        ([item("json", json_object={"ü": 1})], '{"ü": 1}'),
        ([item("json", json_object=[1, "2"])], '[1, "2"]'),
        ([item("json", plain=1)], '{"plain": 1}'),
        ([item("json", json_object={"a": 1}, suppress_output=True)], ""),
        ([item("json", json_object=[1]), item("text", text="t")], "t[1]"),
        ([item("json", json_object=[1]), item("json", json_object=[2]), item("json", json_object=[1])], "[1][2]"),
        ([item("text", text='{"a": 1}'), item("json", json_object={"a": 1})], '{"a": 1}'),
        ([item("json", json_object={"a": 1}), item("text", text='{"a": 1}')], '{"a": 1}'),
        ([item("file", name="n")], '{"name": "n"}'),
        ([item("log", id="1", label="ü")], '{"id": "1", "label": "ü"}'),
        ([item("binary_link", text="u")], '{"text": "u"}'),
        ([item("blob", {"mime_type": "image/png"}, blob="aGFsbG8=")], "[the tool returned a file: image/png, 5 bytes]"),
        ([item("blob", blob="")], "[the tool returned a file: 0 bytes]"),
    ],
)  # fmt: skip
def test_rendering(given, text):
    assert observed(*given) == text


@pytest.mark.parametrize("kind", ["image", "image_link"])
def test_an_image_is_announced_and_its_url_kept_back(kind):
    text = observed(item(kind, text="https://x/secret.png"))
    assert "already sent" in text
    assert "secret" not in text


def test_chunks_are_joined_per_file_in_order_of_arrival():
    text = observed(
        chunk(b"12", key="a"), chunk(b"1", key="b"), item("text", text="between"), chunk(b"345", key="a", sequence=7),
        chunk(b"6", key="a", end=True, meta={"filename": "x.bin", "mime_type": "a/b"}), chunk(b"", key="b", end=True),
    )  # fmt: skip
    assert text == "between[the tool returned a file: x.bin, a/b, 6 bytes][the tool returned a file: 1 bytes]"


def test_a_file_that_never_ends_is_dropped_and_its_id_can_begin_again():
    assert observed(chunk(b"1"), chunk(b"2")) == ""
    ends = chunk(b"1", end=True)
    assert observed(ends, ends) == "[the tool returned a file: 1 bytes]" * 2


def test_limits_of_a_chunk():
    assert observed(chunk(bytes(8192), end=True)) == "[the tool returned a file: 8192 bytes]"
    with pytest.raises(ValueError, match="a file chunk of more than 8192 bytes"):
        observed(chunk(bytes(8193)))


def test_limits_of_a_file(monkeypatch):
    assert messages.MAX_FILE_BYTES == 30 * 1024 * 1024
    monkeypatch.setattr(messages, "MAX_FILE_BYTES", 10)
    assert observed(chunk(bytes(6)), chunk(bytes(4), end=True), chunk(bytes(10), key="g", end=True))
    with pytest.raises(ValueError, match="a file of more than 10 bytes"):
        observed(chunk(bytes(6)), chunk(bytes(5)))
    with pytest.raises(ValueError, match="a file of more than 10 bytes"):
        observed(item("blob", blob=b64encode(bytes(11)).decode()))


def test_limits_of_files_that_do_not_end(monkeypatch):
    monkeypatch.setattr(messages, "MAX_OPEN_FILES", 2)
    ended = chunk(b"1", key="a", end=True)
    assert observed(chunk(b"1", key="a"), chunk(b"1", key="b"), chunk(b"1", key="b"), ended, chunk(b"1", key="c"))
    with pytest.raises(ValueError, match="more than 2 files at the same time"):
        observed(*(chunk(b"1", key=key) for key in "abc"))


def test_limits_of_the_text(monkeypatch):
    monkeypatch.setattr(messages, "MAX_TEXT_BYTES", 10)
    assert observed(item("text", text="ü" * 5)) == "ü" * 5
    with pytest.raises(ValueError, match="more than 10 bytes of text"):
        observed(item("text", text="ü" * 4), item("json", json_object=[1, 2]))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("text", "no tool message"),
        ({"type": "text"}, "message: Field required"),
        ({"type": "retriever_resources", "message": {}}, "no tool message"),
        ({"type": "text", "message": "t"}, "message: Input should be a valid dictionary"),
        (item("text", text=1), "a text item without a 'text' that is a text"),
        (item("link"), "a link item without"),
        (item("image", url="u"), "a image item without"),
        (item("json", json_object="text"), "neither an object nor a list"),
        (item("blob", blob="?"), "a blob item that is not base64"),
        (item("blob_chunk", id="1", blob="abc"), "a blob_chunk item that is not base64"),
        (item("blob"), "a blob item"),
    ],
)
def test_malformed_items(given, text):
    with pytest.raises(ValueError, match=text) as refused:
        observed(given)
    assert len(str(refused.value)) < 400
