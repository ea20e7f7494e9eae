"""Documents of plain data as JSON and YAML text, read so that no file can do harm. JSON alone needs no library."""
