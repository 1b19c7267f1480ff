"""Benchmarks, each one command: `python -m bench.NAME` prints a table and writes JSON to bench/results/."""
