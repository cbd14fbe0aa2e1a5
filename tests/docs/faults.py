"""Requests that go wrong, one or more for each row of the fault tables in lifecycle.md and layers.md."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.docs.pages import prose
from tests.server.bodies import calling, layer
from tests.server.sandboxes import sandboxed

REFUSED: Final = 422
SAY: Final = {"text": "Hello."}
PROMPT: Final = layer("prompt", "plain.prompt", user="Hello.")
HISTORY: Final = layer("history", "pydantic_ai.history")
ASK: Final = layer("ask_human", "dify.ask_human")
ASKING: Final = calling("ask_human", question="Which?")
Body = dict[str, Any]


def tables(page: Path, *head: str) -> list[list[str]]:
    """Rows of every table with this head, from all over the page."""
    rows: list[list[str]] = []
    for table in re.findall(r"(?:^\|.*\n)+", prose(page), re.MULTILINE):
        first, _rule, *others = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
        if [cell.strip("| ") for cell in first] == list(head):
            rows += [[cell.strip("| ") for cell in row] for row in others]
    return rows


def pattern(cell: str) -> re.Pattern[str]:
    """What a documented text matches: ``<…>`` stands for anything, ``(s)`` for itself, one thing or several."""
    parts = re.split(r"<\w[\w ]*>", cell.strip("`"))
    return re.compile(".+".join(map(re.escape, parts)).replace(re.escape("(s)"), r"(?:\(s\)|s?)"))


def model(*turns: Body) -> Body:
    return layer("llm", "scripted.model", turns=list(turns or [SAY]))


def of(*layers: Body, **members: Any) -> Body:
    return {"composition": {"layers": list(layers)}, **members}


def snapshot(*layers: Body, version: int = 1, **states: Any) -> Body:
    """A snapshot of these layers, suspended and empty but for ``states``, a runtime state or a lifecycle state."""
    entries = []
    for each in layers:
        state = states.get(each["name"], {})
        lifecycle, runtime = (state, {}) if isinstance(state, str) else ("suspended", state)
        entries.append({"name": each["name"], "lifecycle_state": lifecycle, "runtime_state": runtime})
    return {"schema_version": version, "layers": entries}


def with_config(type_id: str, name: str = "x", **config: Any) -> Body:
    return of(PROMPT, layer(name, type_id, **config), model())


def refused_requests() -> Iterator[Body]:
    """Requests that are 422."""
    yield of(PROMPT, model(), user_prompt="Hello.")
    yield {}
    yield of(PROMPT, model(), on_exit={"default": "pause"})
    yield of(PROMPT, model(), session_snapshot=snapshot(PROMPT, prompt="active"))
    yield of(PROMPT, model(), deferred_tool_results={"calls": {}, "approvals": {}})
    yield of(model())


def failing_requests() -> Iterator[Body]:
    """Requests whose runs fail."""
    yield from _before_entry()
    yield from _after_entry()
    yield from _bad_configs()
    yield from _bad_schemas()
    yield from _bad_pulls()


def _before_entry() -> Iterator[Body]:
    yield of(PROMPT, layer("past", "pydantic_ai.history"), model())
    yield of(PROMPT, ASK, layer("ask_too", "dify.ask_human"), model())
    yield of(PROMPT, {**HISTORY, "deps": {"a": "prompt"}}, model())
    yield {"composition": {"schema_version": 2, "layers": [PROMPT, model()]}}
    yield of(PROMPT, layer("x", "dify.nothing"), model())
    yield of(PROMPT, layer("", "plain.prompt"), model())
    yield of(PROMPT, PROMPT, model())
    yield of(PROMPT, layer("x", "plain.prompt") | {"deps": {"a": "prompt"}}, model())
    yield of(PROMPT, model(), on_exit={"layers": {"none": "delete"}})
    yield of(PROMPT)
    yield of(PROMPT, session_snapshot=snapshot(PROMPT), deferred_tool_results={})
    yield with_config("plain.prompt", usr="Hello.")
    yield with_config("plain.prompt", usr="Hello.", system="Be kind.")
    llm = model()
    yield of(PROMPT, llm, session_snapshot=snapshot(PROMPT, llm, version=2))
    yield of(PROMPT, llm, session_snapshot=snapshot(llm, PROMPT))
    yield of(PROMPT, HISTORY, llm, session_snapshot=snapshot(PROMPT, HISTORY, llm, history={"messages": ["…"]}))
    yield of(PROMPT, llm, session_snapshot=snapshot(PROMPT, llm, prompt="closed"))


def _after_entry() -> Iterator[Body]:
    probe = layer("a", "scripted.tools", tools=[{"name": "probe"}])
    yield of(PROMPT, layer("llm", "plain.prompt"))
    yield of(PROMPT, layer("output", "plain.prompt"), model())
    yield of(PROMPT, layer("history", "plain.prompt"), model())
    yield with_config("dify.ask_human", tool_name="a" * 65)
    output = layer("output", "dify.output", json_schema={"type": "object"})
    yield of(PROMPT, output, layer("x", "scripted.tools", tools=[{"name": "final_output"}]), model())
    yield of(PROMPT, probe, probe | {"name": "b"}, model())
    yield of(PROMPT, model(), deferred_tool_results={})
    yield of(PROMPT, HISTORY, model(), deferred_tool_results={})
    yield of(PROMPT, ASK, model(ASKING))
    yield of(PROMPT, HISTORY, ASK, model({"tool_calls": ASKING["tool_calls"] * 2}))
    yield of(PROMPT, model(calling("none")))
    yield of(PROMPT, output, model())
    yield of(PROMPT, layer("llm", "pydantic_ai.model", model="nowhere:model"))
    yield of(PROMPT, layer("llm", "pydantic_ai.model", model="test", base_url="http://127.0.0.1:1"))


def resumes_that_fail(bodies: Mapping[str, Body], snapshots: Callable[[str], Body]) -> Iterator[Body]:
    """Requests on top of the pages' own runs."""

    def resumed(name: str, *ids: str) -> Body:
        results = {"deferred_tool_results": {"calls": dict.fromkeys(ids, "yes")}}
        return bodies[name] | {"session_snapshot": snapshots(name)} | results

    yield resumed("other")
    yield resumed("asked")
    yield resumed("asked", "call_2_1", "another")
    yield resumed("mixed", "call-tests", "call-deploy")
    yield resumed("asked") | {"deferred_tool_results": None}


def _bad_configs() -> Iterator[Body]:
    image = {"filename": "a.png", "mime_type": "image/png", "format": "png"}
    yield with_config("dify.user_prompt", text="")
    for file in (
        image,
        image | {"url": "https://host/a.png", "base64_data": "AAAA"},
        image | {"url": "ftp://host/a.png"},
        image | {"base64_data": "AAA"},
        image | {"delivery": "carrier"},
        {"delivery": "download", "type": "document", "transfer_method": "remote_url", "reference": "r"},
    ):
        yield with_config("dify.user_prompt", text="Look.", files=[file])
    yield with_config("dify.ask_human", tool_name="1st")
    yield with_config("dify.ask_human", max_fields=17)
    yield with_config("dify.ask_human", allowed_field_types=["select", "select"])
    yield with_config("dify.ask_human", allowed_field_types=["file", "file-list"])
    yield of(PROMPT, model({}))
    yield of(PROMPT, model({"text": "a", "hang": True}))
    yield of(PROMPT, model({"text": "a", "after_chunks": 1}))
    for tools in (
        [{"name": "a", "result": 1, "hang": True}],
        [{"name": "a"}, {"name": "a"}],
        [{"name": "a", "parameters": {"type": "nothing"}}],
        [{"name": "a", "parameters": {"type": "array"}}],
    ):
        yield with_config("scripted.tools", tools=tools)


def _bad_schemas() -> Iterator[Body]:
    deep: Body = {"type": "string"}
    for _ in range(150):
        deep = {"items": deep}
    for schema in (
        {"type": "array"},
        {"type": "object", "properties": {"a": {"$ref": "https://host/schema"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {}}},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}},
        },
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/a"}},
            "$defs": {"a": _over(deep, "#/$defs/b"), "b": deep},
        },
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}},
        {"type": "object", "properties": {"a": {"$id": "urn:x", "type": "object"}}},
        {"type": "object", "properties": {f"p{n}": {"pattern": f"^{n}$"} for n in range(300)}},
    ):
        yield with_config("dify.output", "output", json_schema=schema)


def _bad_pulls() -> Iterator[Body]:
    pulling = {"mentioned_skill_names": ["tidy-tables"]}
    shell, config = sandboxed(**pulling)
    yield of(PROMPT, shell, config | {"deps": {}}, model())
    yield of(PROMPT, config | {"deps": {"shell": "prompt"}}, model())
    for name in ("--to=/etc", "../x", " "):
        yield of(PROMPT, *sandboxed(mentioned_file_names=[name]), model())
    names = [f"{number:0200}" for number in range(400)]
    yield of(PROMPT, *sandboxed(mentioned_file_names=names), model())
    yield of(PROMPT, *sandboxed(shell={"stub": False}, **pulling), model())
    for fault in ("fail", "hang", "huge", "garbage", "unasked"):
        shortened = {"env": {"ACME_SKILLS": fault}, "max_seconds": 1 if fault == "hang" else 30}
        yield of(PROMPT, *sandboxed(shell=shortened, **pulling), model())


def _over(schema: Body, reference: str) -> Body:
    """The nested schema with a reference at its bottom."""
    return {"items": _over(schema["items"], reference)} if "items" in schema else {"$ref": reference}


LIMITED: Final = {
    "max_fields": 2,
    "max_actions": 1,
    "max_question_chars": 9,
    "max_markdown_chars": 3,
    "max_field_label_chars": 3,
    "max_action_label_chars": 6,
}


def refused_questions() -> Iterator[Body]:
    """Arguments that break a rule of a question under `LIMITED`."""
    field = {"type": "paragraph", "name": "a", "label": "A"}
    action = {"id": "a", "label": "A"}
    question = {"question": "Which?"}
    yield question | {"fields": [field | {"name": name} for name in "abc"]}
    yield question | {"actions": [action, action | {"id": "b"}]}
    yield {"question": "Which of them?"}
    yield question | {"markdown": "long"}
    yield question | {"fields": [{"type": "file", "name": "a", "label": "A"}]}
    yield question | {"fields": [field | {"label": "long"}]}
    yield question | {"actions": [action | {"label": "too long"}]}
    yield {"question": " "}
    yield question | {"fields": [field, field]}
    yield question | {"actions": [action, action]}
    yield question | {"fields": [field | {"name": "1st"}]}
    yield question | {"fields": [field | {"type": "select", "options": []}]}
