"""Plain data as JSON and YAML text, read so that no file can do harm. The JSON part needs no library."""
