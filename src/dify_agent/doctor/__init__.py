"""The doctor: finds broken rules in the run log's keys, and repairs those that have a defined repair (docs/doctor.md).

`dify_agent.doctor.scan` reads, `checks` judges, `repair` writes, `report` tells. Reading is read-only in the strict
sense: commands and scripts that a user without a single write permission may call.
"""
