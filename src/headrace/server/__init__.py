"""One running node with its sockets, pages and metrics. Start at `serve`."""
