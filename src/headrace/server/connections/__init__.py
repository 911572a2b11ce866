"""One protocol over TCP and unix sockets, with bounds and deadlines. Start at `listener`."""
