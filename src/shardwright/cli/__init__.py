"""The command line: one file a command. Data first, then rendering; results on stdout, progress and logs on stderr."""
