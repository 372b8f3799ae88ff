"""What a simulation knows of models that share GPUs: quanta, gaps, memory and bursts, and what memory does to speed.

Start at `models.GuestModels`.
"""
