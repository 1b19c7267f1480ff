"""The command line, `python -m client`: arguments, text as it arrives, progress, and what the exit codes mean."""
