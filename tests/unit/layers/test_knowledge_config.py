"""Config of `dify.knowledge_base` (integrations 6.1)."""

import pytest
from pydantic import ValidationError

from dify_agent.layers.knowledge import DifyKnowledgeBaseLayerConfig, DifyKnowledgeBaseRuntimeState
from dify_agent.protocol import RunLayerSpec

MODEL = {"provider": "p", "name": "m", "mode": "chat"}


def source(**change):
    return {
        "id": "s1", "name": "Docs", "datasets": [{"id": "d1"}], "query": {"mode": "generated_query"},
        "retrieval": {"mode": "multiple", "top_k": 4}, **change,
    }  # fmt: skip


def config(*sets, **change):
    return DifyKnowledgeBaseLayerConfig.model_validate({"sets": list(sets), **change})


def test_defaults():
    made = config(source())
    assert (made.max_result_content_chars, made.max_observation_chars) == (2000, 12000)
    [it] = made.sets
    assert it.model_dump() == {
        "id": "s1", "name": "Docs", "description": None,
        "datasets": [{"id": "d1", "name": None, "description": None}],
        "query": {"mode": "generated_query", "value": None},
        "retrieval": {
            "mode": "multiple", "top_k": 4, "score_threshold": 0.0, "reranking_mode": "reranking_model",
            "reranking_enable": True, "reranking_model": None, "weights": None, "model": None,
        },
        "metadata_filtering": {"mode": "disabled", "model_config": None, "conditions": None},
    }  # fmt: skip


def test_ids_and_names_are_trimmed():
    [it] = config(source(id=" s1 ", name="\tDocs\n", datasets=[{"id": " d1 "}])).sets
    assert (it.id, it.name, it.datasets[0].id) == ("s1", "Docs", "d1")


OPERATORS = [
    "contains", "not contains", "start with", "end with", "is", "is not", "empty", "not empty", "in", "not in", "=",
    "≠", ">", "<", "≥", "≤", "before", "after",
]  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS)
def test_comparison_operators(operator):
    conditions = {"conditions": [{"name": "n", "comparison_operator": operator, "value": ["a"]}]}
    [it] = config(source(metadata_filtering={"mode": "manual", "conditions": conditions})).sets
    assert it.metadata_filtering.conditions.logical_operator == "and"


@pytest.mark.parametrize("value", ["a", ["a"], 3, 1.5, None])
def test_condition_values_keep_their_type(value):
    conditions = {"conditions": [{"name": "n", "comparison_operator": "is", "value": value}]}
    [it] = config(source(metadata_filtering={"mode": "manual", "conditions": conditions})).sets
    kept = it.metadata_filtering.conditions.conditions[0].value
    assert (kept, type(kept)) == (value, type(value))


def test_the_filtering_model_survives_the_ways_a_config_travels():
    filtering = {"mode": "automatic", "model_config": MODEL}
    made = config(source(metadata_filtering=filtering))
    assert made.sets[0].metadata_filtering.filtering_model.name == "m"
    spec = RunLayerSpec(name="k", type="dify.knowledge_base", config=made)
    for dump in (
        made.model_dump(), made.model_dump(mode="json"), made.model_dump(by_alias=False), made.model_dump_json(),
        spec.model_dump(mode="json")["config"],
    ):  # fmt: skip
        validate = DifyKnowledgeBaseLayerConfig.model_validate
        again = DifyKnowledgeBaseLayerConfig.model_validate_json(dump) if isinstance(dump, str) else validate(dump)
        assert again == made


@pytest.mark.parametrize(
    ("sets", "change", "text"),
    [
        ([], {}, "sets must contain at least one knowledge set"),
        ([source(), source(name="Other")], {}, "knowledge set ids must be unique"),
        ([source(), source(id="s2", name=" dOCS ")], {}, "knowledge set names must be unique"),
        ([source(id=" ")], {}, "at least 1 character"),
        ([source(name="\n")], {}, "at least 1 character"),
        ([source(datasets=[])], {}, "datasets must contain at least one dataset"),
        ([source(datasets=[{"id": "d"}, {"id": "d "}])], {}, "dataset ids must be unique"),
        ([source(query={"mode": "user_query"})], {}, "query.value is required for user_query mode"),
        ([source(query={"mode": "user_query", "value": " "})], {}, "query.value is required for user_query mode"),
        ([source(query={"mode": "sometimes"})], {}, "generated_query"),
        ([source(retrieval={"mode": "multiple"})], {}, "retrieval.top_k is required for multiple mode"),
        ([source(retrieval={"mode": "multiple", "top_k": 0})], {}, "greater than or equal to 1"),
        ([source(retrieval={"mode": "single"})], {}, "retrieval.model is required for single mode"),
        ([source(metadata_filtering={"mode": "automatic"})], {}, "metadata_filtering.model_config is required"),
        ([source(metadata_filtering={"mode": "manual"})], {}, "metadata_filtering.conditions is required"),
        ([source(metadata_filtering={"mode": "manual", "conditions": {}})], {}, "conditions is required"),
        ([source(x=1)], {}, "Extra inputs"),
        ([source(query={"mode": "generated_query", "x": 1})], {}, "Extra inputs"),
        ([source(datasets=[{"id": "d", "x": 1}])], {}, "Extra inputs"),
        ([source()], {"x": 1}, "Extra inputs"),
        ([source()], {"max_result_content_chars": 0}, "greater than or equal to 1"),
        (
            [source()],
            {"max_result_content_chars": 20, "max_observation_chars": 19},
            "max_observation_chars must be greater than or equal to max_result_content_chars",
        ),
    ],
)
def test_refused_configs(sets, change, text):
    with pytest.raises(ValidationError, match=text):
        config(*sets, **change)


def test_state():
    assert DifyKnowledgeBaseRuntimeState().model_dump() == {"eager_config_fingerprint": None, "eager_results": []}
    result = {"set_id": "s", "set_name": "n", "query": "q", "observation": "o", "status": "success"}
    DifyKnowledgeBaseRuntimeState.model_validate({"eager_results": [result]})
    for bad in ({"x": 1}, {"eager_results": [{**result, "status": "failed"}]}):
        with pytest.raises(ValidationError):
            DifyKnowledgeBaseRuntimeState.model_validate(bad)
