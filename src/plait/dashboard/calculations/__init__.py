"""Calculations of pages in processes of their own (`plait.dashboard.work`), one module each. Start at `compare`."""
