"""What tests found out beside passing or failing: shown at the end of the run, whichever process they ran in."""

LINES: list[str] = []
