"""Inside the training process: stages, gates, profiles, checkpoints. Nothing here imports torch until it is used."""
