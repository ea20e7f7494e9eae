"""The command line: one file per command. Commands compute data, then render it: results on stdout, progress and logs on stderr."""
