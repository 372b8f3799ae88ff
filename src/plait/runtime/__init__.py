"""What an agent and a training process share: the page of a rank, files of a group, stage gates, throttles. No torch.

Start at `page.Page` for what the two tell each other, at `gates.open_gate` for how a job takes its turn.
"""
