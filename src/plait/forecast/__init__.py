"""The future of a live queue, by simulating it: when a job will start, and how right that was."""
