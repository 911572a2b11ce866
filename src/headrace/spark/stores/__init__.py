"""Where the files of a table are: a path or an object store. Start at `seam`."""
