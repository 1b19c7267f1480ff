"""Metrics: names, and what a scrape shows."""

from prometheus_client.parser import text_string_to_metric_families

from server.observe.metrics import Metrics


def test_every_name_has_our_prefix() -> None:
    metrics = Metrics()
    metrics.sessions.set(3)
    metrics.sessions_total.labels(outcome="closed").inc()
    metrics.first_audio_seconds.labels(engine="tone", mode="stream").observe(0.04)
    metrics.errors.labels(code="bad_json").inc()
    families = {each.name: each for each in text_string_to_metric_families(metrics.render().decode())}
    assert all(name.startswith("cosystream_") for name in families)
    assert families["cosystream_sessions_open"].samples[0].value == 3
    assert families["cosystream_sessions"].samples[0][:3] == ("cosystream_sessions_total", {"outcome": "closed"}, 1.0)
    assert "cosystream_process_resident_memory_bytes" in families
    assert not [name for name in families if name.endswith("_created")]
    buckets = [s for s in families["cosystream_first_audio_seconds"].samples if s.name.endswith("_bucket")]
    assert [s.value for s in buckets if s.labels["le"] in ("0.03", "0.05")] == [0, 1]


def test_what_the_documentation_lists_is_what_a_scrape_shows() -> None:
    metrics = Metrics()
    described = metrics.describe()
    text = metrics.render().decode()
    for each in described:
        base = each.name.removesuffix("_total")
        assert f"# TYPE {each.name} {each.kind}" in text or f"# TYPE {base} {each.kind}" in text
        assert each.help in text
    kinds = {each.name: (each.kind, each.labels) for each in described}
    assert kinds["cosystream_step_seconds"] == ("histogram", ("engine",))
    assert kinds["cosystream_first_audio_seconds"] == ("histogram", ("engine", "mode"))
    assert kinds["cosystream_loop_lag_seconds"] == ("histogram", ())
    assert kinds["cosystream_http_requests_total"] == ("counter", ("method", "route", "status"))


def test_two_servers_in_one_process_do_not_share_figures() -> None:
    first, second = Metrics(), Metrics()
    first.characters.inc(5)
    assert b"cosystream_characters_total 5.0" in first.render()
    assert b"cosystream_characters_total 0.0" in second.render()
