"""One file taken apart, whatever its condition. Start at `file_anatomy`."""
