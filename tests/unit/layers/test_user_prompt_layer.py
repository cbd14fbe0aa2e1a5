"""`dify.user_prompt`: the content it contributes, and that a stored history keeps it."""

import base64
import json

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessagesTypeAdapter,
    ModelRequest,
    UserPromptPart,
)

from agenton.compositor import Compositor, LayerNode, LayerProvider
from agenton_collections.layers.plain import PromptLayer
from agenton_collections.layers.pydantic_ai import PydanticAIHistoryLayer, PydanticAIHistoryRuntimeState
from agenton_collections.transformers.pydantic_ai import PYDANTIC_AI_TRANSFORMERS
from dify_agent.layers.user_prompt.layer import DifyUserPromptLayer

PROVIDER = LayerProvider.from_layer_type(DifyUserPromptLayer)
BYTES = bytes(range(256))  # both alphabets of base64
LINKED = {
    "filename": "photo.PNG",
    "mime_type": "image/png",
    "format": "png",
    "url": "https://example.org/get?id=1&sig=%2F",
    "detail": "low",
}
INLINE = {
    "filename": "sketch.v2.svg",
    "mime_type": "image/svg+xml",
    "format": "svg",
    "base64_data": base64.b64encode(BYTES).decode(),
}
REMOTE = {"delivery": "download", "type": "audio", "transfer_method": "remote_url", "url": "https://example.org/ä b"}
STORED = {"delivery": "download", "type": "image", "transfer_method": "tool_file", "reference": "dify-file-ref:x"}


def content(*files, text="Look."):
    return list(PROVIDER.create_layer({"text": text, "files": list(files)}).user_prompts)


@pytest.mark.parametrize("text", ["Look.", " \n", " kept as it is \n"])
def test_text_alone(text):
    assert content(text=text) == [text]


def test_the_text_stands_before_the_images_in_their_order():
    first, linked, inline = content(LINKED, INLINE)
    assert first == "Look."
    assert isinstance(linked, ImageUrl)
    assert (linked.url, linked.media_type, linked.identifier) == (LINKED["url"], "image/png", "photo")
    assert linked.vendor_metadata == {"filename": "photo.PNG", "detail": "low"}
    assert linked.force_download is False
    assert isinstance(inline, BinaryContent)
    assert (inline.data, inline.media_type, inline.identifier) == (BYTES, "image/svg+xml", "sketch.v2")
    assert inline.vendor_metadata == {"filename": "sketch.v2.svg"}
    assert content(INLINE, LINKED)[1:] == [inline, linked]


@pytest.mark.parametrize(
    ("filename", "extension", "identifier"),
    [
        ("a.png", "png", "a"),
        ("a.PnG", "pNg", "a"),
        ("a.png.png", "png", "a.png"),
        ("a.jpeg", "png", "a.jpeg"),
        ("apng", "png", "apng"),
        ("png", "png", "png"),
        (".png", "png", "image"),
        ("..png", "png", "."),
        ("İ.İ", "İ", "İ"),
        ("x", "tar.gz", "x"),
        ("x.tar.gz", "tar.gz", "x"),
    ],
)
def test_identifier(filename, extension, identifier):
    [_, image] = content({**LINKED, "filename": filename, "format": extension})
    assert image.identifier == identifier
    assert image.vendor_metadata["filename"] == filename


def test_downloads_are_listed_behind_the_text():
    [text, image] = content(REMOTE, LINKED, STORED)
    assert isinstance(image, ImageUrl)
    first, *note, listing = text.split("\n")
    assert first == "Look."
    assert "download" in "".join(note)
    assert listing == (
        '[{"type":"audio","transfer_method":"remote_url","url":"https://example.org/ä b"},'
        '{"type":"image","transfer_method":"tool_file","reference":"dify-file-ref:x"}]'
    )


def test_images_are_decoded_once():
    layer = PROVIDER.create_layer({"text": "x", "files": [INLINE]})
    assert layer.user_prompts[1] is layer.user_prompts[1]


async def test_the_compositor_hands_the_items_on_in_layer_order():
    nodes = [LayerNode("a", PromptLayer), LayerNode("b", DifyUserPromptLayer), LayerNode("c", PromptLayer)]
    configs = {"a": {"user": "first"}, "b": {"text": "second", "files": [LINKED]}, "c": {"user": "last"}}
    async with Compositor(nodes, **PYDANTIC_AI_TRANSFORMERS).enter(configs=configs) as run:
        first, second, image, last = run.user_prompts
        assert [first, second, last] == ["first", "second", "last"]
        assert isinstance(image, ImageUrl)
        assert list(run.prompts) == list(run.tools) == []
    assert run.session_snapshot is not None
    assert [layer.runtime_state for layer in run.session_snapshot.layers] == [{}, {}, {}]


def facts(item):
    """Everything of an item, also what its equality leaves out."""
    if isinstance(item, str):
        return item
    source = item.url if isinstance(item, ImageUrl) else item.data
    return type(item), source, item.media_type, item.identifier, item.vendor_metadata


async def test_a_stored_history_keeps_everything():
    items = content(LINKED, INLINE, STORED)
    messages = [ModelRequest(parts=[UserPromptPart(items)])]
    [message] = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))
    assert [facts(item) for item in message.parts[0].content] == [facts(item) for item in items]

    compositor = Compositor([LayerNode("history", PydanticAIHistoryLayer)])
    async with compositor.enter() as run:
        run.get_layer("history", PydanticAIHistoryLayer).replace_messages(messages)
    assert run.session_snapshot is not None
    state = json.loads(run.session_snapshot.model_dump_json())["layers"][0]["runtime_state"]
    assert PydanticAIHistoryRuntimeState.model_validate(state).messages == messages
