"""What was rendered once and may be wanted again: inner state of engines, finished audio. Pure, always bounded."""
