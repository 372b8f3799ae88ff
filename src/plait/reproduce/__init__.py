"""Published experiments run again: each published world as it was, and the published figures beside ours."""
