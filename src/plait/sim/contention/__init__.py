"""Jobs that slow each other down: on the GPUs they share (`neighbours`), and on the network (`network`)."""
