"""Jobs whose batch size and learning rate follow the resources they have."""
