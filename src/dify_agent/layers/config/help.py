"""What a model is told of the ``dify-agent`` command in its sandbox (specification: integrations 13).

The texts are this server's own: the command in the sandbox is not asked for its help.
"""

from collections.abc import Mapping
from typing import Final

READ_HELP: Final[Mapping[str, str]] = {
    "config": (
        "dify-agent config <manifest|skills|files|note|env> …\n"
        "Reads this agent's config, and where it may be changed, changes it. Results go to stdout. A failure prints "
        "`dify-agent: …` on stderr and ends with status 1."
    ),
    "config manifest": (
        "dify-agent config manifest\n"
        "Prints the config as it is now, as JSON: agent_id, config_version, skills, files, env_keys (names, no "
        "values) and note."
    ),
    "config skills pull": (
        "dify-agent config skills pull [NAME]… [--to DIR] [--json]\n"
        "Downloads and unpacks these skills, or without a name all of them, under DIR (default .dify_conf/skills). "
        "Prints the folder and the SKILL.md of each; with --json "
        '{"items": [{"name", "archive_path", "directory_path", "skill_md"}]}.'
    ),
    "config files pull": (
        "dify-agent config files pull [NAME]… [--to DIR] [--json]\n"
        "Downloads these files, or without a name all of them, into DIR (default .dify_conf/files). Prints the path "
        'of each; with --json {"items": [{"name", "path"}]}.'
    ),
    "config note pull": (
        "dify-agent config note pull [--to FILE]\n"
        "Writes the note to FILE (default .dify_conf/note.md) and prints its absolute path."
    ),
}
"""By command: how the config is read."""

MUTATION_HELP: Final[Mapping[str, str]] = {
    "config note push": (
        "dify-agent config note push [PATH|-]\n"
        "Replaces the note by the content of PATH (default .dify_conf/note.md) or, for -, of stdin. Prints the answer "
        "as JSON."
    ),
    "config env push": (
        "dify-agent config env push PATH|-\n"
        "Sets variables from dotenv lines in PATH or, for -, on stdin: KEY=value sets, KEY= with nothing behind it "
        "deletes, other variables stay. Blank lines and lines that begin with # are skipped, `export ` before a key "
        "is allowed. Prints the answer as JSON."
    ),
    "config files push": (
        "dify-agent config files push PATH…\nUploads these files into the config. Prints the answer as JSON."
    ),
    "config files delete": "dify-agent config files delete NAME…\nDeletes these files. Prints the answer as JSON.",
    "config skills push": (
        "dify-agent config skills push PATH…\n"
        "Packs and uploads these folders as skills. Each needs a SKILL.md and may hold no symbolic link; .git, .venv, "
        "node_modules and caches are left out. Prints the answer as JSON."
    ),
    "config skills delete": "dify-agent config skills delete NAME…\nDeletes these skills. Prints the answer as JSON.",
}
"""By command: how the config is changed."""

FILE_HELP: Final[Mapping[str, str]] = {
    "file upload": (
        "dify-agent file upload PATH [--no-download-link]\n"
        "Uploads a file and prints one line of JSON: transfer_method, reference and, without --no-download-link, "
        "public_download_url."
    ),
    "file download": (
        "dify-agent file download METHOD REFERENCE_OR_URL [--to DIR]\n"
        "Downloads a file into DIR (default: the working directory) and prints its path. METHOD is local_file, "
        "tool_file or datasource_file with a reference, or remote_url with a URL."
    ),
    "file public-url": (
        "dify-agent file public-url REFERENCE\n"
        "Prints the same line of JSON as an upload, with a public_download_url, for a file that is already uploaded."
    ),
}
"""By command: how files go to and come from Dify."""


def cli_help(*, writable: bool) -> dict[str, str]:
    """By command, in the order in which a model reads them; what changes the config only if it is ``writable``."""
    return {**READ_HELP, **(MUTATION_HELP if writable else {}), **FILE_HELP}
