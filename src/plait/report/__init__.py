"""Results as tables, charts and one HTML page that needs no network.

Start at `html.write_html`.
"""
