"""docs/operations.md names every setting and metric, and nothing that does not exist."""

import re
from pathlib import Path

from server.observe.metrics import Metrics
from server.settings import OPTIONS, markdown_table

TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def test_the_table_of_settings_is_the_programs_own() -> None:
    assert markdown_table().strip() in TEXT


def test_every_metric_is_described() -> None:
    for metric in Metrics().describe():
        assert f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or '-'} | {metric.help} |" in TEXT


def test_no_metric_is_invented() -> None:
    known = {metric.name for metric in Metrics().describe()}
    assert set(re.findall(r"`(cosystream_\w+)`", TEXT)) == known


def test_alerts_ask_for_metrics_that_exist() -> None:
    (alerts,) = re.findall(r"```promql\n(.*?)```", TEXT, re.DOTALL)
    asked = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"cosystream_\w+", alerts)}
    assert len(asked) >= 5
    assert asked <= {metric.name for metric in Metrics().describe()}


def test_flags_in_examples_exist() -> None:
    flags = {option.flag for option in OPTIONS} | {"--config", "--file", "--api-key", "--url", "--build-arg"}
    commands = {"--all", "--dir", "--json", "--wav", "--text", "--name", "--consent"}  # of `dlq`, of `client voices`
    commands |= {"--upstream", "--tls-ca"}  # of a benchmark, of the client
    docker = {"--rm", "--read-only", "--tmpfs", "--ulimit"}
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", TEXT)) <= flags | commands | docker
