"""The HTML behind ``/docs``: one file without references to other hosts, whose script lists what the document says."""

from typing import Final

PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Dify Agent Run Server</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
  h2 { font-size: 1rem; margin: 0; }
  details { border: 1px solid #ccc; border-radius: 6px; margin: .5rem 0; padding: .5rem .8rem; }
  summary { cursor: pointer; }
  code, pre { font-family: ui-monospace, monospace; font-size: 13px; }
  pre { background: #f5f5f5; padding: .6rem; overflow: auto; max-height: 24rem; }
  .method { display: inline-block; min-width: 3.5rem; font-weight: 700; }
  table { border-collapse: collapse; } td { padding: .1rem .8rem .1rem 0; vertical-align: top; }
</style>
<h1 id="title">API</h1>
<p>The machine-readable document is <a href="openapi.json">openapi.json</a>.</p>
<div id="operations">Loading…</div>
<h2>Schemas</h2>
<div id="schemas"></div>
<script>
const add = (parent, tag, text) => {
  const node = parent.appendChild(document.createElement(tag));
  if (text !== undefined) node.textContent = text;
  return node;
};
const row = (table, ...cells) => {
  const line = add(table, "tr");
  cells.forEach(cell => add(line, "td", cell));
};
const reference = content =>
  Object.entries(content || {}).map(([type, value]) =>
    type + (value.schema.$ref ? ": " + value.schema.$ref.split("/").pop() : "")).join(", ");
const operation = (parent, method, path, spec) => {
  const box = add(parent, "details"), head = add(box, "summary");
  add(head, "span", method.toUpperCase()).className = "method";
  add(head, "code", path);
  const table = add(box, "table");
  if (spec.requestBody) row(table, "body", reference(spec.requestBody.content));
  (spec.parameters || []).forEach(p =>
    row(table, p.in, p.name + (p.required ? " (required)" : ""), p.description || JSON.stringify(p.schema)));
  Object.entries(spec.responses).forEach(([code, answer]) =>
    row(table, code, answer.description, reference(answer.content)));
};
fetch("openapi.json").then(answer => answer.json()).then(spec => {
  document.getElementById("title").textContent = spec.info.title + " " + spec.info.version;
  const operations = document.getElementById("operations"), schemas = document.getElementById("schemas");
  operations.textContent = "";
  Object.entries(spec.paths).forEach(([path, methods]) =>
    Object.entries(methods).forEach(([method, value]) => operation(operations, method, path, value)));
  Object.entries(spec.components.schemas).sort().forEach(([name, schema]) => {
    const box = add(schemas, "details");
    add(box, "summary", name);
    add(box, "pre", JSON.stringify(schema, null, 2));
  });
}).catch(error => { document.getElementById("operations").textContent = "openapi.json: " + error; });
</script>
</html>
"""

OAUTH2_REDIRECT_PAGE: Final = "<!doctype html><title>OAuth2</title><p>This server has no OAuth flow.</p>\n"
