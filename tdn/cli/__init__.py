"""The `tdn` command: arguments in, results on stdout, everything else on stderr, one exit code per kind of error."""
